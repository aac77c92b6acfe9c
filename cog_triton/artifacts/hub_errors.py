"""What the Hugging Face Hub's refusals mean for a user: one place that knows its exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import errors

from cog_triton.artifacts.retries import RETRIED_STATUS, TryAgain
from cog_triton.errors import ArtifactUnavailable, CogTritonError

# Releases below 1 have one class for both places that an entry can be missing from.
_NotOnTheHub = getattr(errors, "RemoteEntryNotFoundError", errors.EntryNotFoundError)
_LOG_IN = "set HF_TOKEN to a token (huggingface.co/settings/tokens) of an account that has access"


@contextmanager
def explained(repo: str, revision: str | None) -> Iterator[None]:
    """Map what huggingface_hub raises in the block.

    Raises: TryAgain for what may pass; ArtifactUnavailable, with what to do, for the rest.
    """
    where = f"{repo} (revision {revision or 'main'})"
    try:
        yield
    except (CogTritonError, TryAgain):
        raise
    except errors.HfHubHTTPError as err:
        raise _of_answer(repo, where, err) from err
    except errors.OfflineModeIsEnabled as err:
        raise ArtifactUnavailable(
            f"{where} is not here yet, and HF_HUB_OFFLINE forbids to ask the Hugging Face Hub; "
            "unset it, or set model to a directory"
        ) from err
    except errors.LocalEntryNotFoundError as err:
        # How snapshot_download wraps an answer that it could do nothing with.
        if isinstance(err.__cause__, errors.HfHubHTTPError):
            raise _of_answer(repo, where, err.__cause__) from err
        raise TryAgain(
            f"the Hugging Face Hub could not be reached for {where}: {_line(err)}"
        ) from err
    except errors.HFValidationError as err:
        raise ArtifactUnavailable(f"{repo!r} is no name of a model on the Hub ({err})") from err
    except httpx2.ProxyError as err:
        raise ArtifactUnavailable(f"the proxy refuses the Hugging Face Hub ({err})") from err
    except httpx2.TransportError as err:
        raise TryAgain(
            f"the Hugging Face Hub could not be reached for {where}: {_line(err)}"
        ) from err
    except OSError as err:
        if err.errno is not None:  # the file system; the Hub's own have no number
            raise ArtifactUnavailable(f"{where} could not be written ({err})") from err
        raise TryAgain(f"{where} came incomplete ({_line(err)})") from err
    except (ValueError, RuntimeError, AssertionError) as err:
        raise ArtifactUnavailable(f"{where} could not be downloaded ({err})") from err


def _of_answer(repo: str, where: str, err: errors.HfHubHTTPError) -> Exception:
    status = err.response.status_code
    if isinstance(err, errors.GatedRepoError):
        return ArtifactUnavailable(
            f"{repo} is gated: ask for access on huggingface.co/{repo} with your account, wait "
            f"until it is granted, then {_LOG_IN}"
        )
    if isinstance(err, errors.DisabledRepoError):
        return ArtifactUnavailable(f"{repo} has been disabled on the Hugging Face Hub")
    if isinstance(err, errors.RevisionNotFoundError):
        return ArtifactUnavailable(f"the Hugging Face Hub has no {where}; check what follows @")
    if isinstance(err, _NotOnTheHub):
        return ArtifactUnavailable(f"a file of {where} is not on the Hugging Face Hub any more")
    if isinstance(err, errors.RepositoryNotFoundError):
        return ArtifactUnavailable(
            f"the Hugging Face Hub shows no {repo}, and there is no such path here; check the "
            f"name, and if it is private or gated, {_LOG_IN}"
        )
    if status == 401:
        return ArtifactUnavailable(f"the Hugging Face Hub does not accept the token; {_LOG_IN}")
    if status == 403:
        return ArtifactUnavailable(f"the token may not read {repo}; {_LOG_IN}")
    if status in RETRIED_STATUS:
        return TryAgain(f"the Hugging Face Hub answers {status} for {where}")
    return ArtifactUnavailable(f"the Hugging Face Hub answers {status} for {where}")


def _line(err: Exception) -> str:
    """The first line of what an exception says; huggingface_hub's say a lot."""
    return (str(err).splitlines() or [type(err).__name__])[0]
