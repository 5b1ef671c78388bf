"""One target under atheris (libFuzzer with Python coverage) for some seconds; `python -m fuzz` starts it.

A crash does not end the run: it is written down once for each place where it is raised, and the fuzzer goes on.
"""

import argparse
import hashlib
import json
import sys
import traceback
from pathlib import Path

import atheris


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("findings", type=Path)
    parser.add_argument("seconds", type=int)
    options = parser.parse_args()
    with atheris.instrument_imports(include=["twofold"]):
        from fuzz.targets import TARGETS
    target = TARGETS[options.target]
    options.corpus.mkdir(parents=True, exist_ok=True)
    if not any(options.corpus.iterdir()):
        for data in target.seeds():
            (options.corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    known: set[str] = set()

    def run_one(data: bytes) -> None:
        try:
            target.run(data)
        except Exception as error:
            place = _place(error)
            if place not in known:
                known.add(place)
                _write_down(options.findings, options.target, data, error, place)

    arguments = [
        sys.argv[0],
        str(options.corpus),
        f"-max_total_time={options.seconds}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-max_len=8192",
        "-print_final_stats=1",
        f"-artifact_prefix={options.findings}/{options.target}-",
    ]
    atheris.Setup(arguments, run_one)
    atheris.Fuzz()


def _place(error: Exception) -> str:
    """Where it was raised, as far as that is our code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/twofold/" in frame.filename] or list(frames)
    return f"{type(error).__name__} {Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _write_down(folder: Path, target: str, data: bytes, error: Exception, place: str) -> None:
    name = hashlib.sha1(place.encode()).hexdigest()[:12]
    row = {
        "target": target,
        "place": place,
        "error": repr(error)[:300],
        "input": data.hex(),
        "trace": traceback.format_exc(limit=-6),
    }
    (folder / f"{target}-{name}.json").write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
