"""The parts of the check: what each builds, runs and reads. A part that fails does not end the run.
"""

import dataclasses
import json
import os
import re

from gpu_checks import picture


# The tests of label "cuda" that run anywhere, and the targets that they are made of.
ON_THREADS_NAMED = "^(move|cuda_memory|nccl)_"
ON_THREADS = ("move_test", "move_fast_math_test", "cuda_memory_test", "nccl_device_test",
              "nccl_window_test", "nccl_window_device_test",
              "nccl_peer_death_test", "nccl_threads_test", "nccl_runtime_test", "nccl_ops_test",
              "nccl_hier_allreduce_test")


@dataclasses.dataclass
class Outcome:
    state: str  # passed, failed, skipped
    detail: str
    data: object = None


@dataclasses.dataclass
class Part:
    name: str
    question: str
    targets: tuple  # relative to the build, as CMake names them
    limit_s: int
    run: object  # (Run) -> Outcome
    needs_torch: bool = False
    needs_python: bool = False  # its package, beside LibTorch
    needs_cuda: bool = True  # a build with CUDA; what needs a device says so itself


def last_lines(text, count=3):
    """What was said last; what mpirun adds to it, between lines of dashes, only if nothing else."""
    own = re.sub(r"^-{60,}\n.*?^-{60,}$", "", text, flags=re.M | re.S)
    lines = [line.strip() for line in (own if own.strip() else text).splitlines() if line.strip()]
    return " / ".join(lines[-count:])[-300:]


def cmake_error(output):
    """The first error: it stands far above the last lines."""
    found = re.search(r"^CMake Error.*?(?=\n\S|\Z)", output, re.M | re.S)
    return " ".join(found[0].split())[:300] if found else last_lines(output)


def plain(text):
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def gtest_outcome(results):
    """Of several runs of gtest programs: (code, output) each."""
    passed = skipped = 0
    reason = ""
    for code, output in results:
        output = plain(output)
        passed += sum(map(int, re.findall(r"\[  PASSED  \] (\d+) test", output)))
        skipped += sum(map(int, re.findall(r"\[  SKIPPED \] (\d+) test", output)))
        if match := re.search(r"no GPU.*", output):
            reason = match[0].strip()
        if code != 0:
            failures = re.findall(r"\[  FAILED  \] (\w+\.\w+)", output)
            names = ", ".join(sorted(set(failures))) or last_lines(output)
            return Outcome("failed", f"{'over the time limit' if code == 124 else code}: {names}")
    if passed == 0:
        return Outcome("skipped", reason or "all tests were skipped")
    note = f", {skipped} skipped" if skipped else ""
    return Outcome("passed", f"{passed} tests{note}")


def info(run):
    code, output = run.command([run.program("horon-info"), "--json"])
    if code != 0:
        return Outcome("failed", last_lines(output))
    build = json.loads(output)["build"]
    text = "; ".join(f"{name} {build[name]}" for name in ("cuda", "nccl") if build.get(name))
    return Outcome("passed", text, build)


def tests_on_threads(run):
    """The production classes on the GPU of threads: shows that this build is sound."""
    code, output = run.command(["ctest", "--test-dir", run.build, "-L", "^cuda$", "-R",
                                ON_THREADS_NAMED, "-j", str(max(2, run.cores // 2)),
                                "--timeout", str(run.limit_s)])
    # CTest 4 leaves out the number of failures where it is 0.
    summary = re.search(r"tests passed(?:, (\d+) tests? failed)? out of (\d+)", output)
    if summary is None:
        return Outcome("failed", last_lines(output))
    state = "passed" if code == 0 else "failed"
    failed = re.findall(r"^\s+\d+ - (\S+) \(", output, re.M)
    failures = f"{summary[1] or 0} failed {' '.join(failed)}"
    return Outcome(state, f"{summary[2]} tests, {failures}".strip())


def kernels(run):
    results = [run.command([run.program(name)])
               for name in ("move_test_gpu", "cuda_memory_test_gpu")]
    return gtest_outcome(results)


def nccl_contract(ranks):
    def check(run):
        program = run.program("nccl_device_test_gpu")
        watchdog = f"--watchdog-s={max(10, run.limit_s - 5)}"
        return gtest_outcome([run.ranks(ranks, [program, watchdog])])
    return check


def nccl_window(ranks):
    """Whether NCCL registers a window here, and sums in it are right."""
    def check(run):
        program = run.program("nccl_window_device_test_gpu")
        code, output = run.ranks(ranks, [program, f"--watchdog-s={max(10, run.limit_s - 5)}"])
        outcome = gtest_outcome([(code, output)])
        if match := re.search(r"NCCL (\d+): (.*window.*)", plain(output)):
            outcome.detail += f"; NCCL {match[1]}: {match[2]}"
        return outcome
    return check


def peer_death(run):
    code, output = run.command([run.script("tests/support/one_gpu_rank"),
                                run.program("nccl_peer_death_test_gpu")],
                               {"GPU_RANKS": "3"})
    outcome = gtest_outcome([(code, output)])
    told = re.findall(r"after ([\d.]+) s NCCL says: (.*)", output)
    aborts = re.findall(r"abort took ([\d.]+) s", output)
    if told and aborts:
        outcome.detail += (f"; the others knew after {max(float(t) for t, _ in told):.2f} s, "
                           f"abort took {max(map(float, aborts)):.2f} s")
        outcome.data = {"told": told, "aborts": aborts}
    return outcome


def sanitizer(run):
    tool = run.which("compute-sanitizer", "/usr/local/cuda/bin")
    if tool is None:
        return Outcome("skipped", "compute-sanitizer is not installed")
    results = []
    for name in ("move_test_gpu", "cuda_memory_test_gpu"):
        code, output = run.command([tool, "--tool", "memcheck", "--error-exitcode", "99",
                                    "--leak-check", "no", run.program(name)])
        results.append((code, output))
    outcome = gtest_outcome(results)
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", " ".join(out for _, out in results))
    if outcome.state == "passed" and not summaries:
        return Outcome("failed", "compute-sanitizer said nothing: " + last_lines(results[-1][1]))
    outcome.detail += f"; errors: {', '.join(summaries) or '-'}"
    return outcome


def move_bandwidth(run):
    path = os.path.join(run.results, "gpu_moves.json")
    code, output = run.command([run.program("gpu_move_bench"), "--json", path])
    if code == 77:
        return Outcome("skipped", last_lines(output, 1))
    if code != 0:
        return Outcome("failed", last_lines(output))
    with open(path, encoding="utf-8") as file:
        measured = json.load(file)
    rows = measured["rows"]
    with open(os.path.join(run.results, "gpu_moves.svg"), "w", encoding="utf-8") as file:
        file.write(picture.draw(measured["device"], rows))
    large = [row for row in rows if row["bytes"] >= 25 << 20]
    shares, unaligned = {}, []
    for row in large:
        if row["contender"].startswith("cudaMemcpyAsync"):
            continue
        if row["tensors_aligned_to"] < 16:
            unaligned.append(row["of_copy"])
        else:
            shares.setdefault(row["contender"], []).append(row["of_copy"])
    text = ", ".join(f"{name} {min(values):.2f}" for name, values in shares.items())
    copy = max(row["GB_per_s"] for row in large if row["contender"] == "cudaMemcpyAsync")
    worst = min(min(values) for values in shares.values())
    detail = (f"from 25 MiB on, of the copy's {copy:.0f} GB/s at least: {text} (aim 0.90); "
              f"tensors aligned to 4 bytes {min(unaligned):.2f}")
    return Outcome("passed" if worst >= 0.9 else "failed", detail, rows)


def allreduce(ranks):
    """The whole job: init(), a submission for each call, NCCL, the values of the results."""
    def check(run):
        path = os.path.join(run.build, f"allreduce_np{ranks}.json")
        code, output = run.ranks(ranks, [
            run.program("horon-bench"), "--device", "cuda", "-b", "4", "-e", "64M", "-f", "8",
            # Ranks that share the GPU take turns of milliseconds.
            "-n", "5" if ranks == 1 else "2", "-w", "1", "-J", path])
        if (match := re.search(r"--device cuda: (.*)", output)) and not run.here.gpus:
            return Outcome("skipped", "no GPU: " + match[1])
        if code != 0:
            return Outcome("failed", last_lines(output))
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["results"]
        text = ", ".join(f"{row['size']} B in {row['in_place']['time']:.1f} us"
                         for row in (rows[0], rows[-1]))
        return Outcome("passed", f"in place {text}; all values right", rows)
    return check


def training(ranks, collectives="auto"):
    """`ranks`: their number, or those of each host: "2+2"."""
    def check(run):
        program = run.program("torch_real_gpu_test")
        start = run.ranks if isinstance(ranks, int) else run.hosts
        return gtest_outcome([start(ranks, [program, f"--watchdog-s={run.limit_s - 5}"],
                                    {"HORON_GPU_COLLECTIVES": collectives})])
    return check


def python(ranks):
    """Horovod's calls, process groups, DDP and FSDP2 from Python, and CUDA graphs of them."""
    def check(run):
        code, output = run.ranks(ranks, [
            run.python, run.script("tests/torch_bindings/python/programs/on_devices.py")],
            {"PYTHONPATH": os.path.join(run.build, "python")})
        if code != 0:
            return Outcome("failed", last_lines(output))
        if match := re.search(r"no GPU: .*", output):
            return Outcome("skipped", match[0])
        state = "passed" if "on cuda" in output else "failed"
        return Outcome(state, "; ".join(re.findall(r"on \S+: all as it should be", output)))
    return check


def fashion_mnist(run):
    """The example as it stands: it trains where horon::device() says."""
    if not run.here.gpus:
        return Outcome("skipped", "no GPU")
    arguments = ["--epochs", "1", "--save", os.path.join(run.build, "fashion_mnist.pt")]
    if os.path.isdir(run.environment.get("FASHION_MNIST_DATA", "")):
        arguments += ["--data", run.environment["FASHION_MNIST_DATA"]]
    found = []
    for ranks in (1, 2):
        code, output = run.ranks(ranks, [run.program("fashion_mnist"), *arguments])
        match = re.search(r"epoch 1/1\s+([\d.]+) s .* images ([\d.]+) %", output)
        if code != 0 or match is None:
            return Outcome("failed", f"on {ranks} ranks: {last_lines(output)}")
        device = re.search(r"^device (\S+)$", output, re.M)
        if device is None or not device[1].startswith("cuda"):
            return Outcome("failed", f"on {ranks} ranks: {device[0] if device else 'no device'}")
        found.append((ranks, float(match[1]), float(match[2])))
    text = "; ".join(f"{ranks} ranks: {accuracy} % in {seconds} s"
                     for ranks, seconds, accuracy in found)
    return Outcome("passed" if min(a for _, _, a in found) > 75 else "failed", text, found)


def ratios_of(path, contender):
    """For each model the quartiles, median included, of the contender's step over one alone."""
    with open(path, encoding="utf-8") as file:
        models = json.load(file)["models"]
    return {model["model"]: model["ratio_quartiles"][contender] for model in models}


def overhead(run):
    """A step on one rank: Horon's over LibTorch's, and beside it DDP's over PyTorch's."""
    arguments = ["--device", "cuda", "--models", "resnet50,gpt2", "--blocks", "9", "--json"]
    ours = os.path.join(run.results, "training_np1.json")
    code, output = run.ranks(1, [run.program("training_step_bench"), *arguments, ours])
    if match := re.search(r".*has no GPU here.*", output):
        return Outcome("skipped", match[0])
    if code != 0:
        return Outcome("failed", last_lines(output))
    found = {"Horon": ratios_of(ours, "horon")}
    theirs = os.path.join(run.results, "ddp_np1.json")
    code, output = run.ranks(1, [run.python, run.script("bench/ddp_training_step.py"), *arguments,
                                 theirs])
    if code == 0:
        found["DDP"] = ratios_of(theirs, "ddp")
    text = "; ".join(f"{library} {model} {low:.3f} to {high:.3f}, median {middle:.3f}"
                     for library, models in found.items()
                     for model, (low, middle, high) in models.items())
    note = "" if "DDP" in found else "; DDP failed: " + last_lines(output, 1)
    worst = max(middle for _, middle, _ in found["Horon"].values())
    state = "passed" if worst <= 1.01 and not note else "failed"
    return Outcome(state, f"{text} (aim 1.01){note}", found)


def overlap(run):
    """How much of its communication a step hides, on one rank. The host makes the collectives, so
    buckets go out of the GPU and back: that takes time, as between hosts, and none of the GPU's
    kernels."""
    path = os.path.join(run.results, "overlap_np1.json")
    code, output = run.ranks(1, [run.program("training_step_bench"), "--device", "cuda", "--models",
                                 "resnet50,gpt2", "--blocks", "5", "--buckets", "--json", path],
                             {"HORON_GPU_COLLECTIVES": "host"})
    if match := re.search(r".*has no GPU here.*", output):
        return Outcome("skipped", match[0])
    if code != 0:
        return Outcome("failed", last_lines(output))
    with open(path, encoding="utf-8") as file:
        models = json.load(file)["models"]
    found = {model["model"]: {"hidden": model["hidden_quartiles"], "floor": model["floor"],
                              "gradients": model["ratio_quartiles"]["gradients"][1],
                              "step": model["ratio"]} for model in models}
    text = "; ".join(f"{name}: allreduces take {each['gradients']:.2f} of a step, "
                     f"{each['hidden'][1]:.2f} of them hidden" for name, each in found.items())
    # Communication that is too short to be told from the spread of the steps says nothing.
    told = [each["hidden"][1] for each in found.values() if each["gradients"] >= 0.05]
    state = "passed" if told and min(told) >= 0.5 else "failed"
    note = "" if told else "; too short to judge: 0.05 of a step is needed"
    return Outcome(state, f"{text} (aim 0.50){note}", found)


def facts_of_ranks(run):
    """NCCL between ranks that share the GPU, by the smallest test: what else is worth running."""
    program = run.program("nccl_device_test_gpu")
    return gtest_outcome([run.ranks(2, [program, "--gtest_filter=*Broadcast"])])


def all_parts():
    gpu_tests = ("move_test_gpu", "cuda_memory_test_gpu", "nccl_device_test_gpu",
                 "nccl_peer_death_test_gpu")
    nccl = ("nccl_device_test_gpu",)
    windows = ("nccl_window_device_test_gpu",)
    torch_test = ("torch_real_gpu_test",)
    return [
        Part("facts", "what was built, what is there", ("horon-info",), 30, info,
             needs_cuda=False),
        Part("two ranks", "do two NCCL ranks share the GPU?", nccl, 60, facts_of_ranks),
        Part("kernels", "copies, casts, streams, events on the device", gpu_tests[:2], 60, kernels),
        Part("nccl np=1", "all collectives, all types, on memory of the device", nccl, 60,
             nccl_contract(1)),
        Part("nccl np=2", "the same between two real NCCL ranks", nccl, 90, nccl_contract(2)),
        Part("nccl np=4", "the same between four", nccl, 150, nccl_contract(4)),
        Part("window np=1", "NCCL registers memory, and reduces in it", windows, 60,
             nccl_window(1)),
        Part("window np=2", "the same between two", windows, 90, nccl_window(2)),
        Part("job np=1", "whole jobs: allreduce by horon-bench, on one rank", ("horon-bench",), 60,
             allreduce(1)),
        Part("job np=2", "the same on two ranks", ("horon-bench",), 90, allreduce(2)),
        Part("job np=4", "the same on four", ("horon-bench",), 120, allreduce(4)),
        Part("killed peer", "the others learn of it, abort, go on", gpu_tests[3:], 60, peer_death),
        Part("training np=1", "the optimizer and the tensor calls, as one process on the CPU",
             torch_test, 60, training(1), needs_torch=True),
        Part("training np=2", "the same on two ranks", torch_test, 60, training(2),
             needs_torch=True),
        Part("training np=4", "the same on four", torch_test, 90, training(4), needs_torch=True),
        Part("through host", "training on two ranks, collectives by the host on copies",
             torch_test, 60, training(2, "host"), needs_torch=True),
        Part("hosts 2+2", "training on two hosts: NCCL within them, MPI between them", torch_test,
             90, training("2+2", "hierarchical"), needs_torch=True),
        Part("python np=1", "hvd, DDP and FSDP2 on the GPU, from Python", ("horon_python",), 60,
             python(1), needs_torch=True, needs_python=True),
        Part("python np=2", "the same on two ranks", ("horon_python",), 90, python(2),
             needs_torch=True, needs_python=True),
        Part("bandwidth", "pack and unpack beside cudaMemcpyAsync", ("gpu_move_bench",), 60,
             move_bandwidth),
        Part("fashion_mnist", "one epoch of the example on one rank and on two",
             ("fashion_mnist",), 90, fashion_mnist, needs_torch=True),
        Part("overhead", "a step of ResNet-50 and GPT-2 size on one rank, beside plain LibTorch",
             ("training_step_bench",), 120, overhead, needs_torch=True),
        Part("overlap", "of collectives by the host on copies, how much does a step hide?",
             ("training_step_bench",), 90, overlap, needs_torch=True),
        Part("sanitizer", "compute-sanitizer over the kernels", gpu_tests[:2], 90, sanitizer),
        Part("threads", "the same classes on a GPU made of threads", ON_THREADS, 90,
             tests_on_threads, needs_cuda=False),
    ]
