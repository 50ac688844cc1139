#!/usr/bin/env python3
"""The house rules see each kind of breach, and only that."""

import pathlib
import tempfile
import unittest

import house_rules

LONG_BODY = "  work();\n" * 70


def rules_broken(files):
    """{(rule, file)} in a repository of these files, each of them named in a CMake list."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return {(rule, name) for rule, name, _ in house_rules.find_breaches(root)}


class HouseRules(unittest.TestCase):
    def check(self, name, text, *rules):
        files = {name: text, "CMakeLists.txt": name if name.endswith(".cc") else ""}
        self.assertEqual(rules_broken(files), {(rule, name) for rule in rules})

    def test_layers(self):
        self.check("core/base/a.cc", '#include "horon/core/base/b.h"\n')
        self.check("core/base/a.cc", '#include "horon/core/runtime/b.h"\n', "layer")
        self.check("core/negotiation/a.cc", '#include "horon/core/transport/b.h"\n', "layer")
        self.check("core/runtime/a.cc", '#include "horon/core/negotiation/b.h"\n')
        self.check("core/runtime/a.cc", '#include "horon/ops/b.h"\n', "layer")
        self.check("ops/mpi/a.cc", '#include "horon/core/runtime/b.h"\n')
        self.check("ops/a.cc", '#include "horon/tests/b.h"\n', "layer")
        self.check("torch_bindings/a.cc", "#include <horon/bench/b.h>\n", "layer")

    def test_homes_of_headers(self):
        self.check("ops/mpi/a.cc", "#include <mpi.h>\n")
        self.check("ops/host/a.cc", "#include <mpi.h>\n", "mpi")
        self.check("core/transport/mpi_a.cc", "#include <mpi.h>\n")
        self.check("core/runtime/a.cc", "#include <mpi.h>\n", "mpi")
        self.check("torch_bindings/a.cc", "#include <ATen/core/Tensor.h>\n")
        self.check("ops/a.cc", "#include <torch/torch.h>\n", "torch")

    def test_environment(self):
        self.check("ops/a.cc", 'auto x = std::getenv("X");\n', "getenv")
        self.check("ops/a.cc", '// getenv is elsewhere\nauto x = "getenv";\n')
        self.check("core/base/config.cc", 'auto x = std::getenv("X");\n')

    def test_conditionals(self):
        self.check("ops/a.cc", "#ifdef X\n#endif\n", "conditional")
        self.check("ops/a.cc", "  # if X\n#endif\n", "conditional")
        self.check("ops/a.cc", "// #if X\n")

    def test_namespace_torch(self):
        self.check("torch_bindings/a.cc", "namespace torch::nn { class Module; }\n")
        self.check("torch_bindings/a.cc", "namespace horon::torch_detail {}\n")
        self.check("torch_bindings/a.cc", "namespace horon::torch {}\n", "namespace")
        self.check("torch_bindings/a.cc", "namespace horon {\nnamespace torch {}\n}\n", "namespace")

    def test_temporary_files(self):
        self.check("tests/a.cc", 'auto path = testing::TempDir() + "name";\n', "temporary")
        self.check("tests/a.cc", 'auto path =\n    temp_directory_path() / "name";\n', "temporary")
        self.check("tests/a.cc", "auto path = TempDir();\n\nauto pid = getpid();\n", "temporary")
        self.check("tests/a.cc", "auto path = TempDir() +\n            std::to_string(getpid());\n")
        self.check("tests/a.cc", "auto name = getpid();\nauto path = TempDir() + name;\n")

    def test_sizes(self):
        self.check("ops/a.cc", "int x;\n" * 400)
        self.check("ops/a.cc", "int x;\n" * 401, "file")
        self.check("ops/a.cc", "//" + "x" * 98 + "\n")
        self.check("ops/a.cc", "//" + "x" * 99 + "\n", "column")
        self.check("tool", "#!/usr/bin/env bash\n#" + "x" * 100 + "\n", "column")

    def test_pages(self):
        line = ("word " * 19).strip()
        self.check("a.md", f"{line}\n{line}\nend\n")
        self.check("a.md", f"{line}\nshort\n{line}\n", "reflow")
        self.check("a.md", f"- {line}\n  short\n  {line}\n", "reflow")
        self.check("a.md", f"{line} {line}\n", "reflow")
        # A link and a piece of code stay whole; items, tables and code are no paragraphs.
        self.check("a.md", f"short\n[{line}](b.cc) is there\n")
        self.check("a.md", f"short\n`{line}`\n")
        self.check("a.md", "- one\n- two\n\n1. one\n2. two\n")
        self.check("a.md", f"| {line} | {line} |\n| a | b |\n")
        self.check("a.md", f"```\nshort\nshort\n{line} {line}\n```\n")
        self.check("a.md", f"    short\n    {line} {line}\n")

    def test_functions(self):
        self.check("ops/a.cc", "void f() {\n" + "  work();\n" * 58 + "}\n")
        self.check("ops/a.cc", "void f() {\n" + LONG_BODY + "}\n", "function")
        self.check("ops/a.cc", "int C::f(int a,\n int b) const {\n" + LONG_BODY + "}\n", "function")
        self.check("ops/a.cc", "class C {\n void f() {\n" + LONG_BODY + "}\n};\n", "function")
        self.check("ops/a.cc", "C::C(int a) : a_(a) {\n" + LONG_BODY + "}\n", "function")
        # Neither a class nor a namespace nor a table is a function; literals hold no code.
        self.check("ops/a.cc", "class C {\n" + "  void f();\n" * 70 + "};\n")
        self.check("ops/a.cc", "namespace n {\n" + "void f();\n" * 70 + "}\n")
        self.check("ops/a.cc", "constexpr T t = {\n" + "    {1, 2},\n" * 70 + "};\n")
        self.check("ops/a.cc", "auto t = R\"(f() {\n" + "line\n" * 70 + ")\";\n")

    def test_headers_are_guarded(self):
        self.check("ops/a.h", "#pragma once\n")
        self.check("ops/a.h", "int x;\n", "guard")

    def test_own_headers_are_included_first(self):
        lists = {"CMakeLists.txt": "ops/a.cc", "ops/a.h": "#pragma once\n"}
        own = '#include "horon/ops/a.h"\n'
        self.assertEqual(rules_broken({**lists, "ops/a.cc": own + "#include <span>\n"}), set())
        for text in ("#include <span>\n" + own, "int x;\n"):
            self.assertEqual(rules_broken({**lists, "ops/a.cc": text}), {("header", "ops/a.cc")})

    def test_functions_of_libtorch_are_included(self):
        name, lists = "torch_bindings/a.cc", {"CMakeLists.txt": "a.cc"}
        other = {**lists, "torch_bindings/b.h": "#pragma once\n#include <ATen/ops/ones.h>\n"}
        called = "auto t = at::ones({2}) + at::unheard_of();  // at::ones()\n"
        self.assertEqual(rules_broken({**other, name: called}), {("include", name)})
        for header in ("<ATen/ops/ones.h>", "<torch/types.h>"):
            text = f"#include {header}\n" + called
            self.assertEqual(rules_broken({**other, name: text}), set())
        self.assertEqual(rules_broken({**other, name: "// at::ones()\n"}), set())

    def test_foreign_words(self):
        self.check("ops/a.cc", "// TODO: later\n", "word")
        self.check("README.md", "see /work/main\n", "word")

    def test_references(self):
        self.check("ops/a.cc", "// see NOWHERE.md\n", "reference")
        self.assertEqual(rules_broken({"ops/a.h": "#pragma once\n// PAGE.md\n", "x/PAGE.md": ""}),
                         set())

    def test_unlisted_sources(self):
        self.assertEqual(rules_broken({"ops/a.cc": "", "ops/CMakeLists.txt": "b.cc"}),
                         {("unlisted", "ops/a.cc")})
        self.assertEqual(rules_broken({"ops/a.cc": "", "CMakeLists.txt": "ops/aa.cc xa.cc"}),
                         {("unlisted", "ops/a.cc")})
        self.assertEqual(rules_broken({"ops/x_a.cc": "", "ops/CMakeLists.txt": "${prefix}_a.cc"}),
                         set())


if __name__ == "__main__":
    unittest.main()
