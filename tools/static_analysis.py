#!/usr/bin/env python3
"""Runs clang-tidy over core and ops.

usage: static_analysis.py BUILD_FOLDER JOBS    (the folder of `cmake --preset tidy`)

Reading the headers takes longer than checking a source, so the sources of a batch of CMake's unity
build are read as one. They are copied into it: clang's analyzer looks at no function of an included
file; told to look at them, it looks at those of the standard library too, in every batch. The
headers of Horon are one more batch, for which it is told so.
"""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys

SOURCES = pathlib.Path(__file__).resolve().parents[1]
INCLUDED = re.compile(r'#include "(/[^"]+\.cc)"')
BOUNDED = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=20000"]  # no function for ever
WITH_HEADERS = [*BOUNDED, "-Xclang", "-analyzer-opt-analyze-headers"]


def merge(batch):
    """Copies the batch's sources into it. Returns for each line the source and the number there."""
    lines, places = [], []
    for line in batch.read_text().splitlines():
        included = INCLUDED.fullmatch(line)
        if not included:
            lines.append(line)
            places.append((batch, len(lines)))
            continue
        source = pathlib.Path(included[1])
        for number, text in enumerate(source.read_text().splitlines(), 1):
            lines.append(text)
            places.append((source, number))
    batch.write_text("\n".join(lines) + "\n")
    return places


def headers_of(commands, build):
    """A batch of all headers, compiled as the first of the sources."""
    batch = build / "headers.cxx"
    headers = subprocess.run(["git", "ls-files", "--", "core/*.h", "ops/*.h"], cwd=SOURCES,
                             check=True, capture_output=True, text=True).stdout.split()
    batch.write_text("".join(f'#include "horon/{header}"\n' for header in headers
                             if (SOURCES / header).is_file()))
    command = next(c for c in commands if "/Unity/" in c["file"])
    commands.append({"directory": command["directory"], "file": str(batch),
                     "command": command["command"].replace(command["file"], str(batch))})
    return batch


def tidy(build, file, options):
    told = subprocess.run(["clang-tidy", "-p", build, "--quiet",
                           f"--config-file={SOURCES / '.clang-tidy'}",
                           "--checks=-bugprone-suspicious-include",
                           *(f"--extra-arg={option}" for option in options), file],
                          check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return told.returncode, told.stdout


def main():
    build, jobs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    database = build / "compile_commands.json"
    commands = [c for c in json.loads(database.read_text())
                if pathlib.Path(c["file"]).suffix in (".cc", ".cxx")]
    # A template for kernels in a header is checked only where a source makes kernels of it.
    todo = [(headers_of(commands, build), WITH_HEADERS)]
    places = {}
    for command in commands[:-1]:
        file = pathlib.Path(command["file"])
        if "/Unity/" in command["file"]:
            places[str(file)] = merge(file)
        todo.append((file, WITH_HEADERS if file.name.startswith("kernels_") else BOUNDED))
    database.write_text(json.dumps(commands, indent=1))
    todo[1:] = sorted(todo[1:], key=lambda one: -one[0].stat().st_size)  # the longest first

    def place(match):
        source, number = places[match[1]][int(match[2]) - 1]
        return f"{source}:{number}:"

    failed = False
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for code, told in pool.map(lambda one: tidy(build, one[0], one[1]), todo):
            for file in places:
                told = re.sub(rf"({re.escape(file)}):(\d+):", place, told)
            print(told, end="", flush=True)
            failed = failed or code != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
