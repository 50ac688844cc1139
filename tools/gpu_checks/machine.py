"""What this machine has for the check, and what it takes from the pack. Nothing is installed: what
the pack brings stays in the folder of the build.
"""

import glob
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

from gpu_checks import pack

LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"


def say(text):
    print(f"gpu_check: {text}", flush=True)


def output_of(*command):
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def first(candidates):
    return next((str(path) for path in candidates if path and os.path.exists(path)), None)


def package_folder(name):
    """Where Python finds a package; importing it could take seconds."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return list(places)[0] if places else None


class Machine:
    """Facts, the environment of all commands, and the settings of CMake."""

    def __init__(self, work, pack_folder):
        self.work = pathlib.Path(work)
        self.environment = dict(os.environ)
        self.settings = {}
        self.facts = {}
        self.problems = []
        self.prepend("PATH", os.path.dirname(sys.executable))
        self.find_gpu()
        self.find_python_packages()
        self.find_cuda()
        self.take_from_pack(pathlib.Path(pack_folder) / pack.ARCHIVE)
        self.find_tools()

    def prepend(self, variable, path):
        old = self.environment.get(variable, "")
        self.environment[variable] = f"{path}:{old}" if old else str(path)

    def which(self, program):
        return shutil.which(program, path=self.environment["PATH"])

    def find_gpu(self):
        lines = output_of("nvidia-smi", "--format=csv,noheader",
                          "--query-gpu=name,driver_version,compute_cap,memory.total").splitlines()
        self.facts["gpus"] = lines
        self.gpus = len(lines)
        self.facts["loopback"] = self.loopback()
        if lines:
            capability = lines[0].split(",")[2].strip().replace(".", "")
            self.settings["CMAKE_CUDA_ARCHITECTURES"] = capability
        else:
            self.problems.append("no GPU: nvidia-smi shows none; what needs one is left out")

    def loopback(self):
        """MPI and NCCL need it between the ranks of a machine."""
        def is_up():
            flags = pathlib.Path("/sys/class/net/lo/flags").read_text(encoding="ascii")
            return int(flags, 16) & 1 != 0
        try:
            if not is_up():
                output_of("ip", "link", "set", "lo", "up")
            if is_up():
                return "up"
        except OSError:
            return None
        self.problems.append("the interface lo is down (ip link set lo up): ranks can't connect")
        return "down"

    def find_python_packages(self):
        """LibTorch and NCCL of the Python that runs this script."""
        self.torch = package_folder("torch")
        nvidia = package_folder("nvidia")
        self.facts["libtorch"] = self.torch
        needs = output_of("ldd", os.path.join(self.torch or "/none", "lib/libtorch_cuda.so"))
        missing = re.findall(r"(\S+) => not found", needs)
        self.torch_has_cuda = bool(needs) and not missing and self.gpus > 0
        if missing:
            self.problems.append("libtorch_cuda.so does not find " + ", ".join(missing))
        nccl = first([os.path.join(nvidia, "nccl")] if nvidia else [])
        self.facts["nccl"] = nccl
        self.nvidia = nvidia
        if nccl:
            self.environment.setdefault("NCCL_HOME", nccl)
            self.prepend("LD_LIBRARY_PATH", os.path.join(nccl, "lib"))

    def find_cuda(self):
        compiler = first([self.environment.get("CUDACXX"), self.which("nvcc"),
                          "/usr/local/cuda/bin/nvcc"] +
                         glob.glob("/usr/local/cuda-*/bin/nvcc") +
                         glob.glob(os.path.join(self.nvidia or "/none", "*", "bin", "nvcc")))
        version = re.search(r"release ([\d.]+)", output_of(compiler or "nvcc", "--version"))
        self.facts["nvcc"] = f"{compiler} {version[1]}" if version else None
        self.cuda = version is not None
        if not self.cuda:
            self.problems.append("no nvcc: Horon is built without CUDA")
            return
        self.environment["CUDACXX"] = compiler
        self.settings["HORON_NVCC"] = compiler
        toolkit = os.path.dirname(os.path.dirname(os.path.realpath(compiler)))
        self.settings["CUDAToolkit_ROOT"] = toolkit
        header = first([os.path.join(self.environment.get("NCCL_HOME", "/none"), "include/nccl.h"),
                        os.path.join(toolkit, "include/nccl.h"), "/usr/include/nccl.h",
                        "/usr/local/include/nccl.h"])
        if header is None:
            self.cuda = False
            self.problems.append("no nccl.h: Horon is built without CUDA (set NCCL_HOME)")
        else:
            self.settings["HORON_NCCL_INCLUDE_DIR"] = os.path.dirname(header)

    def take_from_pack(self, archive):
        if not archive.exists():
            self.facts["pack"] = None
            return
        root = self.work / "pack"
        stamp = root / "unpacked"
        if not stamp.exists() or stamp.stat().st_mtime < archive.stat().st_mtime:
            shutil.rmtree(root, ignore_errors=True)
            with tarfile.open(archive) as content:
                content.extractall(root)
            stamp.touch()
        self.facts["pack"] = str(archive)
        system = root / "system"
        libraries = root / "lib"
        shutil.rmtree(libraries, ignore_errors=True)
        libraries.mkdir()
        known = output_of("/sbin/ldconfig", "-p")
        for library in sorted((root / "fallback").iterdir()):
            if library.name not in known:
                (libraries / library.name).symlink_to(library)
        self.prepend("CMAKE_PREFIX_PATH", system / "usr")
        self.environment["FASHION_MNIST_DATA"] = str(system / "usr/share/datasets/fashion-mnist")
        if self.which("mpicc") and self.which("mpirun"):
            return
        self.prepend("LD_LIBRARY_PATH", system / LIBRARY_FOLDER)
        self.environment["LD_LIBRARY_PATH"] += f":{libraries}"
        self.move_open_mpi(system)

    def move_open_mpi(self, system):
        """Open MPI looks for its own files where the package has put them: tell it of the pack."""
        home = system / LIBRARY_FOLDER / "openmpi"
        programs = self.work / "pack" / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("mpirun", "mpiexec"):
            link = programs / name
            link.unlink(missing_ok=True)
            link.symlink_to(system / "usr/bin/orterun")
        (programs / "orted").unlink(missing_ok=True)
        (programs / "orted").symlink_to(system / "usr/bin/orted")
        wrapper = programs / "mpicc"
        include, library = f"-I{home}/include -I{home}/include/openmpi", f"-L{home}/lib -lmpi"
        wrapper.write_text("#!/bin/sh\ncase \" $* \" in\n"
                           f"*-showme:compile*) echo '{include}' ;;\n"
                           f"*-showme:link*) echo '{library}' ;;\n"
                           f"*-showme:incdirs*) echo '{home}/include {home}/include/openmpi' ;;\n"
                           f"*-showme:libdirs*) echo '{home}/lib' ;;\n"
                           "*-showme:libs*) echo mpi ;;\n"
                           f"*) exec cc {include} \"$@\" {library} ;;\nesac\n")
        wrapper.chmod(0o755)
        self.prepend("PATH", programs)
        self.settings["MPI_C_COMPILER"] = str(wrapper)
        self.environment.update({
            "OPAL_PREFIX": str(system / "usr"), "OPAL_LIBDIR": str(home / "lib"),
            "OPAL_PKGLIBDIR": str(home / "lib/openmpi3"), "OPAL_BINDIR": str(programs),
            "OPAL_DATADIR": str(system / "usr/share"),
            "OPAL_PKGDATADIR": str(system / "usr/share/openmpi"),
            "OPAL_SYSCONFDIR": str(system / "etc"),
            "OMPI_MCA_mca_base_component_path": str(home / "lib/openmpi3"),
            "OMPI_MCA_mca_base_component_show_load_errors": "0",
            "PMIX_INSTALL_PREFIX": str(system / LIBRARY_FOLDER / "pmix2"),
            "PMIX_MCA_mca_base_component_show_load_errors": "0",
            "PMIX_MCA_pcompress_base_silence_warning": "1",
            # One machine: no remote shell is needed, and no network.
            "OMPI_MCA_plm": "isolated", "OMPI_MCA_btl": "vader,self", "OMPI_MCA_pml": "ob1"})

    def find_tools(self):
        for name in ("cmake", "ninja", "c++", "mpicc", "mpirun"):
            path = self.which(name)
            self.facts[name] = path
            if path is None:
                self.problems.append(f"no {name} (tools/gpu_check --pack, on a machine with a "
                                     "network, packs what this one may lack)")
        self.facts["compiler"] = (output_of("c++", "--version").splitlines() or [None])[0]
        self.facts["cores"] = os.cpu_count()
        self.can_build = all(self.facts[name] for name in ("cmake", "ninja", "c++", "mpicc",
                                                           "mpirun"))

    def tell(self):
        for name, value in self.facts.items():
            for line in value if isinstance(value, list) else [value]:
                say(f"{name}: {line if line is not None else 'none'}")
        for problem in self.problems:
            say(f"NOTE: {problem}")
