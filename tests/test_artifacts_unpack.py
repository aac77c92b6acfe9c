"""Tests of cog_triton.artifacts.unpack, tar_reader and tree_writer, also with hostile archives."""

from __future__ import annotations

import gzip
import os
import random
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cog_triton.artifacts import tree_writer
from cog_triton.artifacts.tar_reader import Member, TarReader
from cog_triton.artifacts.unpack import find_form, unpack
from cog_triton.errors import ArtifactCorrupt, ArtifactUnavailable, CogTritonError
from tests.archive_samples import engine_archive, engine_files, entry, make_tar, tar_of

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def pieces_of(content: bytes, size: int = 1000) -> Iterator[memoryview]:
    """Pieces as a download gives them: each in a buffer that is used again for the next."""
    buffer = bytearray(size)
    for at in range(0, len(content), size):
        piece = content[at : at + size]
        buffer[: len(piece)] = piece
        yield memoryview(buffer)[: len(piece)]


def unpacked(content: bytes, root: Path, piece_bytes: int = 1000) -> dict[str, str]:
    root.mkdir(exist_ok=True)
    return unpack(pieces_of(content, piece_bytes), root, lambda _: None)


def files_below(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


# Good archives


@pytest.mark.parametrize("form", ["tar", "gzip", "zstd"])
@pytest.mark.parametrize("top", ["", "engine", "a/b"])
def test_every_form_gives_the_files_and_their_hashes(form: str, top: str, tmp_path: Path) -> None:
    """Compressed or not, below a directory or not: the files come out, and each is hashed."""
    hashes = unpacked(engine_archive(form, top), tmp_path / "x")
    assert files_below(tmp_path / "x") == engine_files()
    assert hashes == {name: sha256(c).hexdigest() for name, c in engine_files().items()}


@pytest.mark.parametrize("program", ["gzip", "zstd", None])
def test_what_gnu_tar_makes(program: str | None, tmp_path: Path) -> None:
    """Archives of the programs that people use, with long names, links and modes."""
    source = tmp_path / "source"
    long_name = "d" * 120 + "/" + "f" * 150
    (source / long_name).parent.mkdir(parents=True)
    (source / long_name).write_bytes(os.urandom(5000))
    (source / "run.sh").write_text("x")
    (source / "run.sh").chmod(0o6755)
    (source / "empty").write_text("")
    (source / "hard").hardlink_to(source / "run.sh")
    (source / "soft").symlink_to(long_name)
    options = [f"--use-compress-program={program}"] if program else []
    archive = tmp_path / "archive"
    subprocess.run(["tar", "-c", *options, "-f", archive, "-C", source, "."], check=True)
    unpacked(archive.read_bytes(), tmp_path / "x")
    assert files_below(tmp_path / "x") == files_below(source)
    assert (tmp_path / "x" / "soft").readlink() == Path(long_name)
    assert stat.S_IMODE((tmp_path / "x" / "run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "x" / "hard").samefile(tmp_path / "x" / "run.sh")


@given(
    contents=st.lists(st.integers(0, 3000), max_size=5),
    tar_format=st.sampled_from(FORMATS),
    piece_bytes=st.integers(1, 2000),
    name_length=st.integers(1, 300),
)
@settings(max_examples=60, deadline=None)
def test_any_cut_reads_the_same(
    contents: list[int], tar_format: int, piece_bytes: int, name_length: int
) -> None:
    """How the pieces are cut changes nothing, and Python's tarfile reads the same members."""
    if tar_format == tarfile.USTAR_FORMAT:
        name_length = min(name_length, 90)
    entries = [
        entry(f"{i}{'é' if tar_format != tarfile.USTAR_FORMAT else 'e'}" + "n" * name_length,
              random.Random(size).randbytes(size))
        for i, size in enumerate(contents)
    ]  # fmt: skip
    archive = make_tar(*entries, tar_format=tar_format)
    read: dict[str, bytes] = {}
    reader, name = TarReader(), ""
    for at in range(0, len(archive), piece_bytes):
        for event in reader.feed(memoryview(archive)[at : at + piece_bytes]):
            if isinstance(event, Member):
                name = event.name
                read[name] = b""
            else:
                read[name] += bytes(event)
    reader.finish()
    assert read == {info.name: content for info, content in entries}


def test_a_later_entry_replaces_an_earlier_one(tmp_path: Path) -> None:
    """As with tar itself, the last of two files of one name counts, also for its hash."""
    archive = make_tar(entry("a", b"1"), entry("b"), entry("a", b"22"))
    assert unpacked(archive, tmp_path / "x")["a"] == sha256(b"22").hexdigest()
    assert (tmp_path / "x" / "a").read_bytes() == b"22"


def test_links_within_the_tree_are_made(tmp_path: Path) -> None:
    """Links as a hub's cache has them, up and down again, stay links."""
    archive = make_tar(
        entry("blobs/abc", b"1"),
        entry("snapshots/1/model", kind=tarfile.SYMTYPE, target="../../blobs/abc"),
        entry("copy", kind=tarfile.LNKTYPE, target="blobs/abc"),
    )
    hashes = unpacked(archive, tmp_path / "x")
    assert (tmp_path / "x" / "snapshots/1/model").read_bytes() == b"1"
    assert (tmp_path / "x" / "copy").read_bytes() == b"1"
    assert hashes == dict.fromkeys(("blobs/abc", "copy"), sha256(b"1").hexdigest())


def test_what_follows_the_end_mark_is_read(tmp_path: Path) -> None:
    """The source is read to its end, so that its hash can be checked."""
    pieces = pieces_of(tar_of(engine_files()) + bytes(100_000))
    (tmp_path / "x").mkdir()
    unpack(pieces, tmp_path / "x", lambda _: None)
    assert next(pieces, None) is None


# Damaged archives


@pytest.mark.parametrize("form", ["tar", "gzip", "zstd"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_archive(form: str, part: float, tmp_path: Path) -> None:
    """An archive that is cut off is never taken for whole."""
    archive = engine_archive(form, rank0=os.urandom(20_000))
    with pytest.raises(ArtifactCorrupt):
        unpacked(archive[: int((len(archive) - 10_240) * part)], tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "neither"),
        (b"<html>not found</html>" + b" " * 600, "<html>not found"),
        (b"PK\x03\x04" + bytes(range(256)) * 3, "zip"),
        (b"\xfd7zXZ\x00" + bytes(range(256)) * 3, "xz"),
        (b"\x1f\x8bgarbage" * 100, "damaged"),
        (b"\x28\xb5\x2f\xfdgarbage" * 100, "damaged"),
        (b"GGUF" + bytes(600), "not an archive"),
    ],
)
def test_other_files_are_told_apart(content: bytes, what: str, tmp_path: Path) -> None:
    """The error says what came instead of an archive."""
    with pytest.raises(ArtifactCorrupt, match=what):
        unpacked(content, tmp_path / "x")


def test_forms_are_found_by_their_first_bytes() -> None:
    """The name of a file tells nothing."""
    forms = {form: find_form(engine_archive(form)[:512]) for form in ("tar", "gzip", "zstd")}
    assert all(form == found for form, found in forms.items())
    assert find_form(b"GGUF\3") == "gguf"


def test_a_damaged_header(tmp_path: Path) -> None:
    """A header whose checksum is wrong ends the unpacking."""
    archive = bytearray(make_tar(entry("a", b"1"), entry("b", b"2")))
    archive[1024 + 1] ^= 1
    with pytest.raises(ArtifactCorrupt, match="damaged header"):
        unpacked(bytes(archive), tmp_path / "x")


@pytest.mark.parametrize(
    "records",
    [b"9 path", b"x", b"0 a=b\n", b"7 a=bcd", b"99999999999999999999 a=b\n", b"9 size=x\n",
     b"10 path=\xff\n", b"11 size=-1\n", b"30 size=99999999999999999999\n"],
)  # fmt: skip
def test_a_damaged_pax_header(records: bytes, tmp_path: Path) -> None:
    """Extended headers are checked as well."""
    with pytest.raises(ArtifactCorrupt):
        unpacked(make_tar(entry("p", records, tarfile.XHDTYPE), entry("a")), tmp_path / "x")


def test_a_long_header_that_would_fill_the_memory(tmp_path: Path) -> None:
    """A header of gigabytes is refused before any of it is read."""
    archive = bytearray(make_tar(entry("p", b"x", tarfile.XHDTYPE)))
    info = tarfile.TarInfo("p")
    info.type, info.size = tarfile.XHDTYPE, 8 << 30
    archive[:512] = info.tobuf(tarfile.GNU_FORMAT)[:512]
    with pytest.raises(ArtifactCorrupt, match="header of 8589934592 bytes"):
        unpacked(bytes(archive), tmp_path / "x")


# Hostile archives

OUTSIDE = ["/etc/x", "../x", "a/../../x", "..", "a/..", "//x", "/"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_paths_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    """A path is absolute or goes up: nothing is written."""
    with pytest.raises(ArtifactCorrupt, match="leads out"):
        unpacked(make_tar(entry(name, b"1")), tmp_path / "x")
    assert files_below(tmp_path) == {}


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "..", "../..", "../../x", "b/../../..", "x/..", ""]
)
def test_symlinks_that_lead_out_are_refused(target: str, tmp_path: Path) -> None:
    """A link may only name what lies in the tree, and go up only at its beginning."""
    with pytest.raises(ArtifactCorrupt, match="leads out"):
        unpacked(make_tar(entry("l", kind=tarfile.SYMTYPE, target=target)), tmp_path / "x")


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "missing", "d", "l", "h", ""])
def test_hardlinks_name_earlier_files(target: str, tmp_path: Path) -> None:
    """A hard link to a file outside, to none, to a directory or to a link is refused."""
    archive = make_tar(
        entry("d", kind=tarfile.DIRTYPE),
        entry("l", kind=tarfile.SYMTYPE, target="d"),
        entry("h", kind=tarfile.LNKTYPE, target=target),
    )
    with pytest.raises(ArtifactCorrupt):
        unpacked(archive, tmp_path / "x")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE])
def test_nothing_is_put_below_a_link_or_a_file(kind: bytes, tmp_path: Path) -> None:
    """A file whose directory is a link is refused, wherever the link leads."""
    archive = make_tar(entry("l", kind=kind, target="."), entry("l/x", b"1"))
    with pytest.raises(ArtifactCorrupt, match="lies below"):
        unpacked(archive, tmp_path / "x")


def test_links_that_lead_out_together_are_refused(tmp_path: Path) -> None:
    """A link that is harmless as text, but goes up behind another link, is refused."""
    archive = make_tar(
        entry("a/b/up", kind=tarfile.SYMTYPE, target="../.."),
        entry("l", kind=tarfile.SYMTYPE, target="a/b/up/../x"),
    )
    with pytest.raises(ArtifactCorrupt, match="leads out"):
        unpacked(archive, tmp_path / "x")


def test_a_link_to_the_top_directory_that_is_left_out(tmp_path: Path) -> None:
    """A link that would lead out once the top directory is gone is refused."""
    archive = make_tar(
        entry("top/a", b"1"), entry("top/l", kind=tarfile.SYMTYPE, target="../top/a")
    )
    with pytest.raises(ArtifactCorrupt, match="leads out"):
        unpacked(archive, tmp_path / "x")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
        (b"V", "not supported"),
    ],
)
def test_other_kinds_are_refused(kind: bytes, what: str, tmp_path: Path) -> None:
    """Devices, pipes and what is not understood are errors."""
    with pytest.raises(ArtifactCorrupt, match=what):
        unpacked(make_tar(entry("dev", kind=kind)), tmp_path / "x")


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    """A sparse file is not silently written as something else."""
    archive = tmp_path / "archive"
    with (tmp_path / "s").open("wb") as file:
        file.truncate(1 << 20)
    for option in ("--format=gnu", "--format=posix"):
        command = ["tar", "-c", option, "--sparse", "-f", archive, "-C", tmp_path, "s"]
        subprocess.run(command, check=True)
        with pytest.raises(ArtifactCorrupt):
            unpacked(archive.read_bytes(), tmp_path / "x")


def test_modes_and_owners_are_not_taken_over(tmp_path: Path) -> None:
    """Nothing is setuid, writable for others, or somebody else's."""
    archive = make_tar(entry("a", b"1", mode=0o7777, uid=1, gid=1), entry("b", b"1", mode=0))
    unpacked(archive, tmp_path / "x")
    modes = [stat.S_IMODE((tmp_path / "x" / name).stat().st_mode) for name in "ab"]
    assert [mode & 0o7022 for mode in modes] == [0, 0]
    assert (tmp_path / "x" / "a").stat().st_uid == os.getuid()


def test_names_that_no_file_system_has(tmp_path: Path) -> None:
    """A name that is too long, or has a zero in it, is the archive's fault."""
    for name in ("n" * 300, "a\0b"):
        pax = entry("a", b"1", pax_headers={"path": name})
        with pytest.raises(ArtifactCorrupt):
            unpacked(make_tar(pax), tmp_path / "x")


def test_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of endless empty files is left off."""
    monkeypatch.setattr(tree_writer, "MAX_MEMBERS", 3)
    with pytest.raises(ArtifactCorrupt, match="more than 3"):
        unpacked(make_tar(*(entry(str(i)) for i in range(4))), tmp_path / "x")


def test_room_is_asked_for_before_each_file(tmp_path: Path) -> None:
    """A small archive that unpacks to more than the disk holds is stopped at that file."""
    (tmp_path / "x").mkdir()

    def need_space(num_bytes: int) -> None:
        if num_bytes > 1000:
            raise ArtifactUnavailable("no room")

    bomb = zstandard.ZstdCompressor().compress(make_tar(entry("a"), entry("b", bytes(10**7))))
    with pytest.raises(ArtifactUnavailable, match="no room"):
        unpack(pieces_of(bomb), tmp_path / "x", need_space)
    assert files_below(tmp_path / "x") == {"a": b""}


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_bomb_is_unpacked_in_small_steps(form: str) -> None:
    """However far a few bytes expand, only a little of it is in memory at once."""
    import tracemalloc

    zeros = bytes(512) + bytes(200_000_000)
    content = gzip.compress(zeros, 1) if form == "gzip" else zstandard.compress(zeros)
    del zeros
    with TemporaryDirectory() as root:
        tracemalloc.start()
        unpack(pieces_of(content, 1 << 20), Path(root), lambda _: None)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 20_000_000


# Fuzz

NAMES = st.one_of(
    st.sampled_from([*OUTSIDE, "a", "b", "a/b", "a/b/c", "./a", "a/", ".", "", "l", "l/x"]),
    st.lists(st.sampled_from(["a", "b", "..", ".", "", "l"]), max_size=5).map("/".join),
    st.text(max_size=20).filter(lambda text: all(not 0xD800 <= ord(c) <= 0xDFFF for c in text)),
)
KINDS = st.sampled_from(
    [
        *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
        *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z"),
    ]
)
ENTRIES = st.lists(
    st.builds(
        entry, NAMES, st.binary(max_size=600), KINDS, NAMES, mode=st.integers(0, 0o7777)
    ),
    max_size=8,
)  # fmt: skip


def assert_only_inside(outer: Path, content: bytes, piece_bytes: int = 700) -> None:
    """Unpack into `outer/x`, whatever comes of it, and see that all else is as it was."""
    (outer / "canary").write_text("as it was")
    with suppress(CogTritonError):
        unpacked(content, outer / "x", piece_bytes)
    assert (outer / "canary").read_text() == "as it was"
    assert {path.name for path in outer.iterdir()} <= {"canary", "x", "x.top"}
    root = os.path.realpath(outer / "x")
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            mode = path.lstat().st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
            assert not mode & 0o6000 or stat.S_ISLNK(mode)
            if stat.S_ISLNK(mode):
                assert os.path.commonpath([root, os.path.realpath(path)]) == root


@given(entries=ENTRIES, tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@settings(max_examples=250, deadline=None)
def test_no_archive_writes_outside(
    entries: list[tuple[tarfile.TarInfo, bytes]], tar_format: int
) -> None:
    """Any names, kinds and links: nothing outside changes, and only our own errors come out."""
    with TemporaryDirectory() as outer:
        assert_only_inside(Path(outer), make_tar(*entries, tar_format=tar_format))


@given(data=st.data(), form=st.sampled_from(["tar", "gzip", "zstd"]))
@settings(max_examples=150, deadline=None)
def test_no_damage_is_a_crash(data: st.DataObject, form: str) -> None:
    """Any change of a few bytes anywhere gives the files or one of our own errors."""
    content = bytearray(engine_archive(form, "top"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(content) - 1, 6000)))
        content[at] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as outer:
        assert_only_inside(Path(outer), bytes(content))


@given(content=st.binary(max_size=3000))
@settings(max_examples=50, deadline=None)
def test_no_noise_is_a_crash(content: bytes) -> None:
    """Nor does anything that is no archive at all."""
    with TemporaryDirectory() as outer:
        assert_only_inside(Path(outer), content)


def test_a_reader_that_fails_is_passed_on(tmp_path: Path) -> None:
    """What the source raises while it is decompressed comes out as it is."""

    def broken() -> Iterator[memoryview]:
        yield memoryview(engine_archive("zstd", rank0=os.urandom(50_000))[:30_000])
        raise ArtifactUnavailable("gone")

    (tmp_path / "x").mkdir()
    with pytest.raises(ArtifactUnavailable, match="gone"):
        unpack(broken(), tmp_path / "x", lambda _: None)
