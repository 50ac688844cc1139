"""What a machine with a GPU but no network may lack, as one archive: Open MPI, GoogleTest and the
libraries of the benchmarks, copied from this machine's Debian packages (tools/setup installs them).
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGES = ("libopenmpi3", "libopenmpi-dev", "openmpi-bin", "openmpi-common", "libpmix2",
            "libgtest-dev", "libgmock-dev", "googletest", "libcli11-dev", "nlohmann-json3-dev",
            "zlib1g-dev", "libeigen3-dev")
OPTIONAL_PACKAGES = ("dataset-fashion-mnist",)
# Neither needed to compile nor to run: other languages, pages, tools for other networks.
LEFT_OUT = re.compile(r"/usr/share/(man|doc|lintian|bug)/|/fortran/|/usr/src/|\.la$|\.mod$"
                      r"|lib(oshmem|mpi_(mpifh|usempi\w*|java|cxx)[-.\w]*|ompitrace)\.(so|a)"
                      r"|mca_\w+_(ucx|ofi|psm\d?|verbs|usnic|openib|tm|slurm|monitoring)\.so$"
                      r"|libmca_common_(ucx|ofi|verbs|monitoring)|/libopen-\w+\.a$|/libmpi\.a$")
# Part of every system that has a compiler. Another copy of them would do harm.
OF_EVERY_SYSTEM = re.compile(r"(ld-linux|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+"
                             r"|linux-vdso)[.-]")
LIMIT_BYTES = 56 << 20
ARCHIVE = "gpu_check_pack.tar.gz"


def files_of(package):
    result = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None
    return [line for line in result.stdout.splitlines()
            if os.path.isfile(line) and not LEFT_OUT.search(line)]


def needed_libraries(files):
    """The shared libraries that these programs and libraries need, as paths."""
    found = set()
    for file in files:
        if not re.search(r"\.so(\.|$)|/s?bin/", file):
            continue
        result = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
        for path in re.findall(r"=> (/\S+)", result.stdout):
            if not OF_EVERY_SYSTEM.match(os.path.basename(path)):
                found.add(path)
    return found


def copy_into(root, file):
    """As it is; a link that leads out of its own folder becomes the file it leads to."""
    target = root / file.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() or target.is_symlink():
        return
    if os.path.islink(file) and "/" not in os.readlink(file):
        os.symlink(os.readlink(file), target)
        return
    shutil.copy2(file, target)


def make_pack(folder):
    """Writes the archive into the folder and returns its path."""
    if shutil.which("dpkg") is None:
        sys.exit("gpu_check --pack: needs a Debian or Ubuntu with the packages of tools/setup")
    lists = {package: files_of(package) for package in PACKAGES + OPTIONAL_PACKAGES}
    missing = [package for package in PACKAGES if lists[package] is None]
    if missing:
        sys.exit(f"gpu_check --pack: not installed here: {' '.join(missing)} (tools/setup "
                 "installs them)")
    files = [file for found in lists.values() for file in found or []]
    # A folder of their own: they are used only where the machine has none of that name.
    packed = {os.path.realpath(file) for file in files}
    extra = [path for path in needed_libraries(files) if os.path.realpath(path) not in packed]
    os.makedirs(folder, exist_ok=True)
    path = pathlib.Path(folder) / ARCHIVE
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        for file in files:
            copy_into(root / "system", file)
        (root / "fallback").mkdir()
        for file in extra:
            shutil.copy2(os.path.realpath(file), root / "fallback" / os.path.basename(file))
        with tarfile.open(path, "w:gz") as archive:
            archive.add(root, arcname=".")
    size = path.stat().st_size
    if size > LIMIT_BYTES:
        sys.exit(f"gpu_check --pack: {path} has {size >> 20} MiB, {LIMIT_BYTES >> 20} are allowed")
    print(f"gpu_check: {path}: {size / 2**20:.1f} MiB, {len(files)} files of "
          f"{len([p for p in lists if lists[p] is not None])} packages, {len(extra)} libraries")
    return path
