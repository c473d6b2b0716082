"""A solution in C++ or CUDA. Its pitch's `build` compiles it once, in the fence, before anybody is examined; contestants load what came of that.
`hammerhead tank import` wrote this file.

    compiled.py SOLUTION.json LIBRARY.so

The same sources make the same bytes at any time: a library that has won is compiled again where the season goes on, and
is known by its bytes. In another folder c++ makes the same, too; nvcc names what is local to a file by a hash of its path.

Sources are bound to Python as torch's extensions are: `PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)`, with the entry point among its functions.
"""

import concurrent.futures
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

MODULE = "solution"
ON_GPU = {"cuda", "cuda_cpp", "cublas"}
LANGUAGES = ON_GPU | {"cpp", "c++"}
SOURCES = {".cu", ".cpp", ".cc", ".cxx", ".c"}
# From there on a GPU has instructions that are no later one's, and a compiler has to be asked for them.
FIRST_OF_ITS_OWN = 9


def languages(spec):
    return {language.lower() for language in [spec.get("language"), *(spec.get("languages") or [])] if language}


def is_compiled(spec):
    return bool(languages(spec) & LANGUAGES)


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def library_of(path):
    """Where a solution's library lies: beside it."""
    return pathlib.Path(path).with_suffix(".so")


def lacks(name, spec):
    """What is missing here to compile and run a solution, if anything is."""
    import torch

    if languages(spec) & ON_GPU:
        if not shutil.which("nvcc"):
            return (
                f"nvcc is not on PATH: {name} is written in CUDA C++; install CUDA's toolkit, or add its bin to PATH and, unless it lies "
                "in /usr or /opt, its folder to `readable` in operation.toml"
            )
        if not torch.cuda.is_available():
            return f"torch finds no GPU: {name} is written in CUDA C++, and computes on one"
    if not shutil.which("c++"):
        what = "CUDA C++, whose half for the processor nvcc leaves to it" if languages(spec) & ON_GPU else "C++"
        return f"c++ is not on PATH: {name} is written in {what}; install a compiler"
    header = pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.exists() else f"{header} is not there, and {name} is bound to Python: install this interpreter's headers"


def not_there(path):
    """Why a solution's library is not there, of one that has to be compiled."""
    path = pathlib.Path(path)
    if path.suffix != ".json" or not is_compiled(read(path)["spec"]) or library_of(path).exists():
        return None
    return lacks(path.name, read(path)["spec"]) or f"{path.name} was not compiled: write `build` into its pitch as the import does"


def unpacked(solution, folder):
    """A folder with a solution's sources."""
    folder = pathlib.Path(folder).resolve()
    for source in solution["sources"]:
        path = (folder / source["path"]).resolve()
        if not path.is_relative_to(folder):
            raise SystemExit(f"its source {source['path']} lies beside its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source["content"])
        # __TIMESTAMP__ says when a source was changed.
        os.utime(path, (0, 0))
    return folder


def standard():
    """The C++ that torch's own headers ask for."""
    from torch.utils import cpp_extension

    found = re.search(r"-std=(c\+\+\d+)", inspect.getsource(cpp_extension))
    return found[1] if found else "c++17"


def architecture(flags):
    """What nvcc is to compile for: the GPU that is here, unless the solution says."""
    import torch

    if any("arch" in flag or "gencode" in flag for flag in flags):
        return []
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    return [f"-arch=sm_{major}{minor}{'a' if major >= FIRST_OF_ITS_OWN else ''}"] if major else []


def for_the_host(nvcc, flag):
    """A flag of the host's compiler."""
    return f"-Xcompiler={flag}" if nvcc else flag


def repeatable(nvcc, folder, source):
    """Flags that keep out of an object what is not of its source: the folder's name and random numbers. nvcc writes the
    names of its temporary files into objects, too, unless these lie beside them."""
    name = source.relative_to(folder)
    flags = [for_the_host(nvcc, f"-ffile-prefix-map={folder}=.")]
    known = subprocess.run(["nvcc", "--help"], capture_output=True, text=True).stdout if nvcc else ""
    seed = f"-frandom-seed={name}"
    flags.append(seed if "-frandom-seed" in known else for_the_host(nvcc, seed))
    return [*flags, "-objtemp"] if "-objtemp" in known else flags


def commands(solution, folder, objects_folder, library):
    """What compiles each source, and what links them."""
    import torch
    from torch.utils import cpp_extension

    spec = solution["spec"]
    options = spec.get("compile_options") or {}
    nvcc, own = bool(languages(spec) & ON_GPU), options.get("cflags") or []
    pic = ["-Xcompiler=-fPIC"] if nvcc else ["-fPIC"]
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    common = ["-O3", f"-std={standard()}", f"-DTORCH_EXTENSION_NAME={MODULE}", "-DTORCH_API_INCLUDE_EXTENSION_H", f"-I{folder}"]
    common += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    common += [word for include in includes for word in ("-isystem", include)]
    objects, compile = [], []
    sources = sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)
    for number, source in enumerate(sources):
        flags = [for_the_host(nvcc, flag) for flag in own]
        if source.suffix == ".cu":
            flags = options.get("cuda_cflags") or []
            flags = [*cpp_extension.COMMON_NVCC_FLAGS, *architecture(flags), *flags]
        # Sources in two folders may have one name, and temporary files would, too.
        objects.append(str(objects_folder / str(number) / "object.o"))
        os.makedirs(objects_folder / str(number))
        flags = [*repeatable(nvcc, folder, source), *flags]
        compile.append(["nvcc" if nvcc else "c++", "-c", str(source), "-o", objects[-1], *pic, *common, *flags])
    # Torch's libraries are there already wherever this is loaded.
    paths = [pathlib.Path(path) for path in cpp_extension.library_paths()]
    names = ["c10", "torch", "torch_cpu", "torch_python", *(["c10_cuda", "torch_cuda"] if nvcc else [])]
    linked = [f"-l{name}" for name in names if any((path / f"lib{name}.so").exists() for path in paths)]
    wanted = languages(spec) | {name.lower() for name in spec.get("dependencies") or []}
    linked += ["-lcublas", "-lcublasLt"] if "cublas" in wanted else []
    for flag in options.get("ld_flags") or []:
        # To nvcc, what is for the linker is said another way.
        linked += [f"-Xlinker={word}" for word in flag.split(",")[1:]] if nvcc and flag.startswith("-Wl,") else [flag]
    stubs = [pathlib.Path(shutil.which("nvcc")).resolve().parents[1] / "lib64" / "stubs"] if nvcc else []
    # Names of temporary files are among those of symbols that nobody outside needs.
    strip = "-Xlinker=-s" if nvcc else "-s"
    linker = ["nvcc" if nvcc else "c++", "-shared", strip, *objects, "-o", str(library)]
    return compile, [*linker, *(f"-L{path}" for path in paths + stubs if path.exists()), *linked]


def ran(command):
    """Ends with what is wrong where a command fails. Last comes the first error, since last words are what is quoted."""
    # What __DATE__ and __TIME__ say.
    then = {**os.environ, "SOURCE_DATE_EPOCH": "0", "TZ": "UTC"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=then)
    if done.returncode:
        print(" ".join(command), done.stdout, sep="\n", file=sys.stderr)
        said = done.stdout.splitlines()
        raise SystemExit(next((line for line in said if "error" in line.lower()), f"{command[0]} ended with status {done.returncode}"))


def build(path, library):
    solution = read(path)
    # Where nothing can be compiled, what somebody else compiled would be taken for this solution's.
    pathlib.Path(library).unlink(missing_ok=True)
    if missing := lacks(pathlib.Path(path).name, solution["spec"]):
        # That is no fault of the solution's: whoever is asked to compute without a library says what is missing.
        print(missing, file=sys.stderr)
        return
    # Beside the library: where a compiler writes down where it was, that is the same place every time.
    beside = [pathlib.Path(library).resolve().with_suffix(suffix) for suffix in (".sources", ".objects")]
    for folder in beside:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    folder = unpacked(solution, beside[0])
    compile, link = commands(solution, folder, beside[1], library)
    if not compile:
        raise SystemExit(f"it has no sources to compile ({', '.join(sorted(SOURCES))})")
    with concurrent.futures.ThreadPoolExecutor() as several:
        list(several.map(ran, compile))
    ran(link)
    for folder in beside:
        shutil.rmtree(folder)
    function(library, solution["spec"])


def function(library, spec):
    """The entry point of a library."""
    # Its libraries first.
    import torch  # noqa: F401

    name = spec["entry_point"].split("::")[-1]
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(library))
    made = importlib.util.module_from_spec(importlib.util.spec_from_file_location(MODULE, library, loader=loader))
    loader.exec_module(made)
    if not hasattr(made, name):
        raise SystemExit(f"its module has no function {name}, which is its entry point: {', '.join(n for n in dir(made) if n[0] != '_')}")
    return getattr(made, name)


def serve_nothing(name, why):
    """Answers as a contestant that cannot do any problem."""
    import tank

    tank.keep_channel()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            tank.say(type="hello", protocol=2, name=name, deterministic=False)
        elif asked["type"] == "prepare":
            tank.say(type="unsupported", id=asked["id"], reason=why)
        else:
            return


if __name__ == "__main__":
    build(*sys.argv[1:])
