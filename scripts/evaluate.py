"""Does the server say what the model says: summaries against a reference, with ROUGE.

Each article is sent to a running server (Cog, or a model of Triton), one at a time and greedily.
The answers are compared with the stored answers of a reference, the same weights in another
program, and with summaries that people wrote. Scores are percentages; progress goes to stderr.
Exit status: 0, 1 a score is under its --fail-under, 2 nothing could be evaluated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from benchmarks.arguments import positive
from benchmarks.cannot_run import CannotRun
from benchmarks.load.address import check_address, check_health
from benchmarks.load.targets import TRITON_MODELS
from benchmarks.quality import answers, scores
from benchmarks.quality.articles import ARTICLES, INSTRUCTION, Article, read_articles
from benchmarks.quality.evaluation import SCORES, Case, compare, shortfalls, table, totals
from benchmarks.quality.reference import Reference, stored_path
from benchmarks.quality.reference_engines import ENGINES
from cog_triton import settings
from cog_triton.artifacts.model_directory import ModelDirectory
from cog_triton.errors import CogTritonError
from cog_triton.model import fetch_model

URLS = {"cog": "http://127.0.0.1:5000", "triton": "http://127.0.0.1:8000"}
HEALTH_PATHS = {"cog": "/health-check", "triton": "/v2/health/ready"}


def main() -> int:
    options = parse()
    try:
        articles = read_articles(options.articles)[: options.limit]
        directory = (
            ModelDirectory.read(options.model_dir)
            if options.model_dir
            else fetch_model(settings.load())
        )
        model = answers.Model.load(directory)
        if options.write_reference:
            make_reference(options, model, articles)
            return 0
        return evaluate(options, model, articles)
    except (CannotRun, CogTritonError) as err:
        print(err, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--target", choices=sorted(URLS), default="cog")
    add("--model", choices=TRITON_MODELS, default="tensorrt_llm", help="with --target triton")
    add("--url", help=f"default: {', '.join(f'{name} {url}' for name, url in URLS.items())}")
    add("--allow-remote", action="store_true", help="ask another machine than this one")
    add("--model-dir", type=Path, help="the model's files (default: the settings' model)")
    add("--articles", type=Path, default=ARTICLES, help="JSONL with id, article and summary")
    add("--limit", type=positive, help="only so many of the articles")
    add("--max-tokens", type=positive, default=64, help="longest answer (default: 64)")
    add(
        "--reference",
        default="transformers",
        metavar="ENGINE|FILE",
        help=f"{' or '.join(sorted(ENGINES))}: the one shipped for the settings' model, made by "
        "that engine; or a file (default: transformers)",
    )
    add("--json", type=Path, help="also write the scores and all answers here")
    add(
        "--fail-under",
        type=threshold,
        action="append",
        default=[],
        metavar="SCORE=PERCENT",
        help=f"may be repeated; scores: {', '.join(SCORES)}",
    )
    add(
        "--write-reference",
        metavar="FILE",
        type=Path,
        help="make the reference with the engine of --reference, write it here, and end",
    )
    return parser.parse_args()


def threshold(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in SCORES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SCORES)}")
    return name, float(value)


def reference_path(reference: str) -> Path:
    if reference in ENGINES:
        return stored_path(settings.load().model, reference)
    return Path(reference)


def make_reference(
    options: argparse.Namespace, model: answers.Model, articles: Sequence[Article]
) -> None:
    if options.reference not in ENGINES:
        raise CannotRun(f"--reference is {options.reference}, not {' or '.join(sorted(ENGINES))}.")
    made_by, generate = ENGINES[options.reference](model)
    found = {}
    for article in articles:
        ids = generate(model.prompt_ids(article.prompt), options.max_tokens)
        found[article.id] = model.cut(ids)
        say(f"{article.id}: {model.text(ids)}")
    name = model.directory.path.name
    reference = Reference(name, made_by, options.max_tokens, INSTRUCTION, found)
    reference.write(options.write_reference)
    print(f"{len(found)} answers of {made_by} in {options.write_reference}")


def evaluate(options: argparse.Namespace, model: answers.Model, articles: Sequence[Article]) -> int:
    """Ask, compare, report; 1 if a score is under its threshold."""
    rouge = scores.rouge()
    reference = Reference.read(reference_path(options.reference))
    url = check_address(options.url or URLS[options.target], allow_remote=options.allow_remote)
    check_health(url, HEALTH_PATHS[options.target])
    cases = []
    with httpx.Client(base_url=url, trust_env=False) as http:
        ask = choose(options, http, model)
        for number, article in enumerate(articles, start=1):
            expected = reference.answer(article, options.max_tokens)
            answer = ask(article.prompt, options.max_tokens)
            case = compare(model, rouge, article, answer, expected)
            cases.append(case)
            common = f"{case.tokens.num_common} of {case.tokens.num_tokens} tokens equal"
            say(f"{number} of {len(articles)}, {article.id}: {common}")
    return conclude(options, reference, cases)


def choose(options: argparse.Namespace, http: httpx.Client, model: answers.Model) -> answers.Ask:
    if options.target == "cog":
        return answers.from_cog(http)
    if options.model == "tensorrt_llm":
        return answers.from_triton_ids(http, model)
    return answers.from_triton_text(http, model, options.model)


def conclude(options: argparse.Namespace, reference: Reference, cases: Sequence[Case]) -> int:
    found = totals(cases)
    print(f"{len(cases)} articles; reference: {reference.model}, {reference.made_by}")
    print(table(found))
    missed = shortfalls(found, dict(options.fail_under))
    if options.json:
        made_by = {"model": reference.model, "made_by": reference.made_by}
        content = {
            "reference": made_by,
            "scores": found,
            "failed": missed,
            "cases": [asdict(case) for case in cases],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for line in missed:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if missed else 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
