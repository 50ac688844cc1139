#!/usr/bin/env python3
"""The pages (*.md) say what is there: links, files, knobs and names that they mention exist.

usage: docs_test.py    checks this repository, and that each kind of breach is seen
"""

import json
import os
import pathlib
import re
import tempfile
import unittest

import house_rules

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
KNOB = re.compile(r"(?:(-D)|\b)(HORON_[A-Z0-9_]*[A-Z0-9])\b")
FILE = re.compile(r"`([\w./-]+\.(?:h|cc|py|txt|cmake))`")
NAME = re.compile(r"\bhoron::([\w:]*\w)")
FIELD = re.compile(r"[{,]\s*\.(\w+) = ")


def anchors_of(text):
    """What the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def check_link(page, target, texts, root):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    place = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    if not (root / place).exists():
        return f"links to {target}, which is not there"
    if anchor and anchor not in anchors_of(texts.get(place, "")):
        return f"links to {target}, but there is no such heading"
    return None


def find_breaches(root):
    """One line for each thing that a page names and that does not exist."""
    files = house_rules.tracked_files(root)
    texts = {name: (root / name).read_text(encoding="utf-8") for name in files
             if name.endswith((".md", ".h", "CMakeLists.txt")) or name == "core/base/config.cc"}
    knobs = set(re.findall(r'"(HORON_\w+)"', texts.get("core/base/config.cc", "")))
    options = set(re.findall(r"\b(HORON_\w+)", "".join(
        text for name, text in texts.items() if name.endswith("CMakeLists.txt"))))
    headers = "".join(text for name, text in texts.items() if name.endswith(".h"))
    words = set(re.findall(r"\w+", headers))
    breaches = []
    for page in [name for name in files if name.endswith(".md")]:
        text = texts[page]
        found = [check_link(page, target, texts, root) for target in LINK.findall(text)]
        for define, name in KNOB.findall(text):
            if name not in (options if define else knobs):
                found.append(f"names {name}, which is no {'option of CMake' if define else 'knob'}")
        for name in FILE.findall(text):
            tail = "/" + name.removeprefix("horon/")
            if not any(("/" + file).endswith(tail) for file in files):
                found.append(f"names {name}, which is not in the repository")
        for name in NAME.findall(text) + FIELD.findall(text):
            if not words.issuperset(name.split("::")):
                found.append(f"names {name}, which is in no header")
        breaches += [f"{page}: {what}" for what in dict.fromkeys(found) if what]
    return breaches


def rows_of_process_groups(results, ranks):
    """The cells of two tables of bench/results/README.md, as the kept figures give them."""
    with open(results / f"process_groups_np{ranks}.json", encoding="utf-8") as file:
        report = json.load(file)
    calls = {}
    for row in report["collectives"]:
        calls.setdefault(row["collective"], {})[row["bytes"]] = row
    for name, of_size in calls.items():
        columns = [(size, "ratio") for size in (4, 4096, 65536, 1 << 20, 1 << 24)]
        yield [str(ranks), name, *(f"{of_size[size][key]:.2f}" if size in of_size else ""
                                   for size, key in [*columns, (1 << 24, "shared_ratio")])]
    for model in report["models"] if ranks == 4 else []:
        figures = (model["over_floor_quartiles"][key]
                   for key in ("optimizer", "ddp_horon", "ddp_gloo"))
        yield [model["model"], *(f"{middle:.2f} ({low:.2f} to {high:.2f})"
                                 for low, middle, high in figures)]


class Docs(unittest.TestCase):
    maxDiff = None

    def test_this_repository(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        self.assertEqual(find_breaches(root), [])

    def test_tables_of_process_groups_hold_what_was_kept(self):
        results = pathlib.Path(__file__).resolve().parents[2] / "bench/results"
        page = (results / "README.md").read_text(encoding="utf-8")
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
        missing = [row for ranks in (2, 4) for row in rows_of_process_groups(results, ranks)
                   if row not in lines]
        self.assertEqual(missing, [])

    def check(self, page, *breaches):
        files = {"docs/README.md": page, "PROTOCOL.md": "# Its `first` heading\n",
                 "core/base/config.cc": 'bytes("HORON_KNOB", 1)', "CMakeLists.txt": "HORON_TOOLS",
                 "core/base/a.h": "struct Options { int name; }; void reduce();"}
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            self.assertEqual(find_breaches(root), [f"docs/README.md: {line}" for line in breaches])

    def test_links(self):
        self.check("[a](../PROTOCOL.md) [b](../PROTOCOL.md#its-first-heading) [c](https://x.org/y)")
        self.check("[a](PROTOCOL.md)", "links to PROTOCOL.md, which is not there")
        self.check("# Here\n[a](#here) [b](#there)",
                   "links to #there, but there is no such heading")
        self.check("[a](../PROTOCOL.md#second)",
                   "links to ../PROTOCOL.md#second, but there is no such heading")

    def test_knobs(self):
        self.check("`HORON_KNOB=1` and `-DHORON_TOOLS=OFF`, in short HORON_*")
        self.check("HORON_KNOBS", "names HORON_KNOBS, which is no knob")
        self.check("HORON_TOOLS", "names HORON_TOOLS, which is no knob")
        self.check("-DHORON_KNOB", "names HORON_KNOB, which is no option of CMake")

    def test_files_and_names(self):
        self.check("`base/a.h`, `horon/core/base/a.h`; horon::reduce(x, {.name = y})")
        self.check("`base/b.h`", "names base/b.h, which is not in the repository")
        self.check("`e/a.h`", "names e/a.h, which is not in the repository")
        self.check("horon::produce(x, {.title = y})", "names produce, which is in no header",
                   "names title, which is in no header")


if __name__ == "__main__":
    unittest.main()
