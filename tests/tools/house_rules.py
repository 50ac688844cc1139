#!/usr/bin/env python3
"""The rules of the house, as a test: layers, limits of size, and who may include what.

usage: house_rules.py [REPOSITORY]    fails with one line per breach

Exceptions stand in house_rules_exceptions.txt, "RULE PATH" a line. The list may only shrink: an
exception that is no longer needed is a breach too.
"""

import pathlib
import re
import subprocess
import sys

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
LINE_COLUMNS_MAX = 100
PAGE_COLUMNS_MAX = 105    # of a line of text in a page
PAGE_COLUMNS_FILLED = 70  # as many as a line of a paragraph uses, if the next word fits

# Each folder may include itself and what its row names.
LAYERS = {
    "core/base": set(),
    "core/bootstrap": {"core/base"},
    "core/host": {"core/base", "core/bootstrap"},
    "core/transport": {"core/base", "core/host", "core/bootstrap"},
    "core/negotiation": {"core/base"},
    "core/execution": {"core/base", "core/host", "core/negotiation"},
    "core/tuning": {"core/base"},
    "core/runtime": {"core/base", "core/bootstrap", "core/negotiation", "core/transport",
                     "core/execution"},
    "ops/choice": {"core"},
    "ops/host": {"core", "ops/choice"},
    "ops/hierarchical": {"core", "ops/choice", "ops/host"},
    "ops/adasum": {"core", "ops/host", "ops/hierarchical"},
    "ops/mpi": {"core", "ops/host", "ops/hierarchical"},
    "ops/cuda": {"core"},
    "ops/nccl": {"core", "ops/cuda"},
    "ops/hierarchical_gpu": {"core", "ops/host", "ops/hierarchical", "ops/cuda", "ops/nccl"},
    "ops/timing": {"core", "ops/choice", "ops/host", "ops/hierarchical"},
    "ops/communicator": {"core", "ops/choice", "ops/mpi"},
    "ops": {"core", "ops/adasum", "ops/choice", "ops/timing", "ops/host", "ops/hierarchical",
            "ops/mpi", "ops/cuda", "ops/nccl", "ops/hierarchical_gpu", "ops/communicator"},
    "ops/session": {"core", "ops"},
    "torch_bindings/tensors": {"core", "ops"},
    "torch_bindings/collectives": {"core", "ops", "torch_bindings/tensors"},
    "torch_bindings/gradients": {"core", "ops", "torch_bindings/tensors",
                                 "torch_bindings/collectives"},
    "torch_bindings/state": {"core", "ops", "torch_bindings/tensors",
                             "torch_bindings/collectives"},
    "torch_bindings/lr": {"core", "ops", "torch_bindings/tensors", "torch_bindings/collectives",
                          "torch_bindings/gradients", "torch_bindings/guards"},
    "torch_bindings/amp": {"core", "ops", "torch_bindings/tensors", "torch_bindings/collectives",
                           "torch_bindings/gradients", "torch_bindings/lr"},
    "torch_bindings/guards": {"core", "ops", "torch_bindings/collectives"},
    "torch_bindings/logging": {"core", "ops", "torch_bindings/tensors",
                               "torch_bindings/collectives", "torch_bindings/guards",
                               "torch_bindings/metrics"},
    "torch_bindings/metrics": {"core", "ops", "torch_bindings/tensors",
                               "torch_bindings/collectives"},
    "torch_bindings/modules": {"core", "ops", "torch_bindings/tensors",
                               "torch_bindings/collectives"},
    "torch_bindings/data": {"core", "ops", "torch_bindings/tensors"},
    "torch_bindings/checkpoint": {"core", "ops", "torch_bindings/tensors",
                                  "torch_bindings/collectives", "torch_bindings/state"},
    "torch_bindings/python": {"core", "ops", "torch_bindings"},
    "torch_bindings": {"core", "ops", "torch_bindings"},
    "bench": {"core", "ops", "torch_bindings"},
    "tools": {"core", "ops", "torch_bindings"},
    "tests": {"core", "ops", "torch_bindings", "bench", "tools"},
}
MPI_HOMES = re.compile(r"core/(bootstrap|transport)/mpi_|ops/mpi/|bench/mpi_|bench/\w*mpi|tests/"
                       r"|torch_bindings/examples/burgers_")  # a program that owns MPI
TORCH_HOMES = re.compile(r"torch_bindings/|tests/(torch_bindings|tools/outer)/|bench/"
                         r"|tools/\w*torch")
ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|environ)\b")
ENVIRONMENT_HOMES = re.compile(r"core/base/config\.cc$|tests/")
TORCH_HEADER = re.compile(r'#include\s*[<"](torch|ATen|c10|caffe2)/')
MPI_HEADER = re.compile(r'#include\s*[<"]mpi\.h')
HIDES_TORCH = re.compile(r"\bnamespace\s+horon(::torch\b|\s*\{.*\bnamespace\s+torch\b)",
                         re.S)
# Tests run beside each other: a file of this folder bears the number of the process that makes it.
TEMPORARY = re.compile(r"\b(TempDir|temp_directory_path)\(\)")
# Names of the environment in which the code was written mean nothing to its readers.
FOREIGN_WORDS = re.compile(r"/work/|/tmp/horon|shared/anchors|\bTODO\b|\bFIXME\b|\bXXX\b")
# These name what is forbidden.
OWN_FILES = {"tests/tools/house_rules.py", "tests/tools/house_rules_test.py"}
TEXT_SUFFIXES = {".h", ".cc", ".cu", ".cmake", ".py", ".sh", ".in"}


def tracked_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], capture_output=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
    else:  # sources that are no git checkout
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    return sorted(name for name in names if name and (root / name).is_file())


def is_source(name):
    return name.endswith((".h", ".cc", ".cu"))


def is_script(text):
    return re.match(r"#!.*(sh|python3?)\b", text) is not None


def layer_of(name):
    return max((layer for layer in LAYERS if name.startswith(layer + "/")), key=len, default=None)


def code_only(text):
    """The text without comments and literals, with the same line numbers."""
    pattern = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
                         r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(lambda match: '""' + "\n" * match[0].count("\n"), text)


def long_functions(text):
    """(line, length) of each function body of more lines than allowed.

    With this layout of braces a function's body opens with a line that ends in ") {" or the like,
    at a depth at which there are only namespaces and classes.
    """
    kinds = []
    breaches = []
    statement = ""
    for number, line in enumerate(code_only(text).split("\n"), start=1):
        for letter in line:
            if letter == "{":
                scope = re.search(r"\b(namespace|class|struct|enum|union)\b[^()=]*$", statement)
                inside = any(kind[0] == "function" for kind in kinds)
                is_body = not scope and not inside and ")" in statement
                kinds.append(("function" if is_body else "other", number))
                statement = ""
            elif letter == "}":
                kind, begin = kinds.pop() if kinds else ("other", number)
                if kind == "function" and number - begin + 1 > FUNCTION_LINES_MAX:
                    breaches.append((begin, number - begin + 1))
                statement = ""
            elif letter == ";":
                statement = ""
            else:
                statement += letter
        statement = "" if line.lstrip().startswith("#") else statement + " "
    return breaches


def check_layers(name, text, report):
    layer = layer_of(name)
    if layer is None:
        return
    for number, line in enumerate(text.split("\n"), start=1):
        match = re.match(r'\s*#include\s*[<"]horon/([\w./]+)[>"]', line)
        if not match or match[1] == "horon.h":
            continue
        target = layer_of(match[1])
        allowed = LAYERS[layer]
        if target != layer and not allowed & {target, (target or "").split("/")[0]}:
            report("layer", name, f"line {number}: {layer} must not include {match[1]}")


def check_content(name, text, report):
    code = code_only(text)
    if MPI_HEADER.search(text) and not MPI_HOMES.match(name):
        report("mpi", name, "includes mpi.h")
    if TORCH_HEADER.search(text) and not TORCH_HOMES.match(name):
        report("torch", name, "includes LibTorch")
    if ENVIRONMENT.search(code) and not ENVIRONMENT_HOMES.match(name):
        report("getenv", name, "reads the environment; core/base/config.cc does that")
    for match in re.finditer(r"^\s*#\s*(if|ifdef|ifndef|elif)\b", code, re.M):
        line = code.count("\n", 0, match.end()) + 1
        report("conditional", name, f"line {line}: #{match[1]}; let CMake pick a file")
    if HIDES_TORCH.search(code):
        report("namespace", name, "opens a namespace that hides ::torch")
    if name.endswith(".h") and "#pragma once" not in text:
        report("guard", name, "has no #pragma once")
    for begin, length in long_functions(text):
        report("function", name, f"line {begin}: {length} lines, {FUNCTION_LINES_MAX} allowed")


def check_temporary_files(name, text, report):
    """The number stands in the line itself, in one of the two in front, or in the next."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        near = "\n".join(lines[max(0, number - 2):number + 2])
        if TEMPORARY.search(line) and not re.search(r"\b(getpid|mkdtemp)\b|_XXXXXX\b", near):
            report("temporary", name, f"line {number + 1}: a name without the process's number")


def check_size(name, text, report):
    lines = text.rstrip("\n").split("\n")
    if len(lines) > FILE_LINES_MAX:
        report("file", name, f"{len(lines)} lines, {FILE_LINES_MAX} allowed")
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_COLUMNS_MAX:
            report("column", name, f"line {number}: {len(line)} of {LINE_COLUMNS_MAX} columns")


def check_words(name, text, report):
    for number, line in enumerate(text.split("\n"), start=1):
        match = FOREIGN_WORDS.search(line)
        if match:
            report("word", name, f"line {number}: '{match[0]}'")


def page_paragraphs(text):
    """(line number, lines) of each paragraph or item of a list; without tables and code."""
    code = False
    paragraph = []
    for number, line in enumerate(text.split("\n") + [""], start=1):
        fence = line.lstrip().startswith("```")
        item = re.match(r" *([-*]|\d+\.) ", line) is not None
        # Code is indented by four columns; so is the text of an item within an item.
        indented = line.startswith("    ") and not item and not paragraph
        marked = line.lstrip().startswith(("|", "#", "<"))
        plain = bool(line.strip()) and not marked and not indented
        if paragraph and (code or fence or item or not plain):
            yield number - len(paragraph), paragraph
            paragraph = []
        code = code != fence
        if plain and not code and not fence:
            paragraph.append(line)


def check_page(name, text, report):
    """Lines of text that a change has left much too long or too short."""
    # What stays together: a link, a piece of code, a word.
    first_word = re.compile(r"\s*((?:\[[^]]*\]\([^)]*\)|`[^`]*`|\S)+)")
    for begin, lines in page_paragraphs(text):
        for number, line in enumerate(lines):
            columns = len(re.sub(r"\]\([^)]*\)", "]", line))  # without the targets of links
            if columns > PAGE_COLUMNS_MAX:
                report("reflow", name, f"line {begin + number}: {columns} columns")
            if number + 1 == len(lines):
                continue
            rest = "\n".join(lines[number + 1:])
            filled = len(line) + 1 + len(first_word.match(rest)[1])
            if filled <= PAGE_COLUMNS_FILLED:
                report("reflow", name, f"line {begin + number}: ends early within a paragraph")


def check_listed(sources, lists, report):
    """Each .cc stands in a CMake list, so that none is forgotten in the build."""
    words = {word for text in lists for word in re.findall(r"[\w./+${}-]+\.cc\b", text)}
    # What a CMake variable holds is not known here: it stands for any text.
    parts = [".*".join(map(re.escape, re.split(r"\$\{\w+\}", word))) for word in words]
    listed = re.compile("(.*/)?(" + "|".join(parts) + ")") if parts else re.compile("(?!)")
    for name in sources:
        if not listed.fullmatch(name):
            report("unlisted", name, "is in no CMakeLists.txt or .cmake file")


def check_own_headers(texts, report):
    """X.cc includes X.h first, so that the header compiles alone."""
    for name, text in texts.items():
        own = pathlib.PurePath(name).with_suffix(".h").as_posix()
        if not name.endswith(".cc") or own not in texts:
            continue
        first = re.search(r"^#include (.*)", text, re.M)
        if first is None or first[1] not in (f'"horon/{own}"', f'"{own.rsplit("/", 1)[-1]}"'):
            report("header", name, f"its first #include is not that of {own}")


def check_functions_of_libtorch(texts, report):
    """Who calls at::f() includes <ATen/ops/f.h>, itself or by its own header: where sources are
    compiled together, another one's includes hide that it is missing."""
    includes = {name: set(re.findall(r"^#include [<\"]([^>\"]+)", text, re.M))
                for name, text in texts.items() if name.startswith("torch_bindings/")}
    header = re.compile(r"ATen/ops/(\w+)\.h")
    known = {match[1] for all_of in includes.values() for match in map(header.match, all_of)
             if match}
    for name, own in includes.items():
        reach = own | includes.get(pathlib.PurePath(name).with_suffix(".h").as_posix(), set())
        if not is_source(name) or reach & {"ATen/ATen.h", "torch/torch.h", "torch/types.h"}:
            continue
        called = set(re.findall(r"\bat::(\w+)\(", code_only(texts[name]))) & known
        for function in sorted(called):
            if f"ATen/ops/{function}.h" not in reach:
                report("include", name, f"calls at::{function}() without <ATen/ops/{function}.h>")


def check_references(texts, files, report):
    """A page that a text names is there."""
    pages = {name.rsplit("/", 1)[-1] for name in files if name.endswith(".md")}
    for name, text in texts.items():
        if name in OWN_FILES:
            continue
        for page in sorted(set(re.findall(r"\b\w+\.md\b", text)) - pages):
            report("reference", name, f"names {page}, which is not in the repository")


def find_breaches(root):
    breaches = []

    def report(rule, name, detail):
        breaches.append((rule, name, detail))

    files = tracked_files(root)
    texts = {}
    for name in files:
        if pathlib.PurePath(name).suffix in {".png", ".gz", ".bin"}:
            continue
        data = (root / name).read_bytes()
        if b"\0" not in data:
            texts[name] = data.decode("utf-8", errors="replace")
    for name, text in texts.items():
        scripted = is_script(text) or name.endswith("CMakeLists.txt")
        if pathlib.PurePath(name).suffix in TEXT_SUFFIXES or scripted:
            check_size(name, text, report)
        if name not in OWN_FILES:
            check_words(name, text, report)
        if name.endswith(".md"):
            check_page(name, text, report)
        if is_source(name):
            check_layers(name, text, report)
            check_content(name, text, report)
            check_temporary_files(name, text, report)
    lists = [text for name, text in texts.items() if name.endswith(("CMakeLists.txt", ".cmake"))]
    check_own_headers(texts, report)
    check_functions_of_libtorch(texts, report)
    check_references(texts, files, report)
    check_listed([name for name in texts if name.endswith(".cc")], lists, report)
    return breaches


def read_exceptions(path):
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return {tuple(line.split()) for line in lines if line.strip() and not line.startswith("#")}


def main():
    here = pathlib.Path(__file__).resolve()
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here.parents[2]
    exceptions = read_exceptions(root / "tests/tools/house_rules_exceptions.txt")
    breaches = find_breaches(root)
    unused = exceptions - {(rule, name) for rule, name, _ in breaches}
    lines = [f"{name}: {rule}: {detail}" for rule, name, detail in breaches
             if (rule, name) not in exceptions]
    lines += [f"house_rules_exceptions.txt: {' '.join(entry)} is no longer needed: take it out"
              for entry in sorted(unused)]
    for line in lines:
        print(line)
    print(f"house rules: {len(lines)} breaches, {len(exceptions)} exceptions")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
