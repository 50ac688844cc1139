#!/usr/bin/env python3
"""Collects the examples of pages and headers into one file of C++, which the build compiles.

An example is
 - in a page (*.md) a block fenced by ```cpp; of one fenced by ```diff, what is there afterwards;
 - in a header that programs include, a paragraph of a comment that is indented by three spaces or
   more and has a line of code in it, that is one that ends in ; { or }.
"..." stands for other statements. What the examples don't declare themselves is declared in
tests/torch_bindings/example_variables.h.

usage: examples.py ROOT OUT.cc     writes OUT.cc
       examples.py --test          tests itself
"""

import pathlib
import re
import sys
import unittest

FENCED = re.compile(r"^```(cpp|diff)\n(.*?)^```$", re.M | re.S)
COMMENT = re.compile(r"\s*//(.*)$")
HEADERS = ("torch_bindings/**/*.h", "ops/session/*.h")
PAGES = ("README.md", "core/**/*.md", "ops/**/*.md", "torch_bindings/**/*.md", "bench/*.md",
         "tests/*.md")


def after(diff):
    """What is there when a diff has been applied, on the same lines."""
    return "".join("\n" if line.startswith("-") else line[1:]
                   for line in diff.splitlines(keepends=True))


def is_code(line):
    return re.search(r"[;{}]\s*$", re.sub(r"//.*", "", line)) is not None


def examples_of_page(text):
    """(number of the first line, code)"""
    for block in FENCED.finditer(text):
        code = after(block[2]) if block[1] == "diff" else block[2]
        yield text.count("\n", 0, block.start(2)) + 1, code


def examples_of_header(text):
    paragraph = []
    for number, line in enumerate(text.splitlines() + [""], 1):
        comment = COMMENT.match(line)
        if comment and comment[1].strip():
            paragraph.append((number, comment[1]))
            continue
        lines = [line for _, line in paragraph]
        if lines and all(line.startswith("   ") for line in lines) and any(map(is_code, lines)):
            yield paragraph[0][0], "".join(line + "\n" for line in lines)
        paragraph = []


def compiled(name, place, line, code):
    """One example as a function in a namespace of its own."""
    code = re.sub(r"^(\s*|.*[;{]\s+)\.\.\.(?=\s|$)", r"\1", code, flags=re.M)
    code = re.sub(r"^#include.*$", "", code, flags=re.M)
    is_program = "int main()" in code
    code = code.replace("int main()", "int program()")
    begin, end = ("", "") if is_program else ("void example() {\n", "}\n")
    return (f"namespace examples::{name} {{\n{begin}#line {line} \"{place}\"\n{code}{end}}}\n")


def collect(root):
    out = ['#include <horon/horon.h>\n#include <torch/torch.h>\n'
           '#include "horon/tests/torch_bindings/example_variables.h"\n']
    for patterns, examples_of in ((PAGES, examples_of_page), (HEADERS, examples_of_header)):
        for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
            place = path.relative_to(root).as_posix()
            found = examples_of(path.read_text(encoding="utf-8"))
            for ordinal, (line, code) in enumerate(found, 1):
                name = re.sub(r"\W", "_", place.lower()) + f"_{ordinal}"
                out.append(compiled(name, path.as_posix(), line, code))
    return "".join(out)


class ExamplesTest(unittest.TestCase):
    def test_pages(self):
        page = ("# x\n```cpp\nint a;\n```\ntext\n```\nnot code;\n```\n"
                "```diff\n+int b;\n-int c;\n d\n```\n")
        self.assertEqual(list(examples_of_page(page)), [(3, "int a;\n"), (10, "int b;\n\nd\n")])

    def test_headers(self):
        header = ("// Prose;\n//\n//   call(a,\n//        b);   // why\n//\n"
                  "//   a table   of words\n//\n// 1. item\n//    goes on;\n"
                  "  //\n  //   own();\nint x;\n")
        self.assertEqual(list(examples_of_header(header)),
                         [(3, "   call(a,\n        b);   // why\n"), (11, "   own();\n")])

    def test_dots_stand_for_statements(self):
        code = compiled("n", "README.md", 7, "for (;;) { ... step(); }\n...\ncall(...);\n")
        self.assertIn("for (;;) {  step(); }\n\ncall(...);\n", code)
        self.assertIn('#line 7 "README.md"', code)

    def test_programs(self):
        code = compiled("n", "README.md", 1, "#include <x>\nint main() {\n}\n")
        self.assertNotIn("example()", code)
        self.assertIn("int program() {", code)


if __name__ == "__main__":
    if sys.argv[1] == "--test":
        unittest.main(argv=sys.argv[:1])
    pathlib.Path(sys.argv[2]).write_text(collect(pathlib.Path(sys.argv[1])), encoding="utf-8")
