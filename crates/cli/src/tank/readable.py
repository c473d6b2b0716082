"""Says which interpreter this is, and which folders solutions have to read in the fence: where its modules lie, and
CUDA's toolkit if nvcc is there, since solutions in CUDA C++ are compiled in it.

The home folder is never among them, nor one that holds it: there are keys in it, whatever else is.
"""

import os
import shutil
import sys

import torch

found = {sys.prefix, sys.base_prefix, *sys.path, os.path.dirname(os.path.dirname(torch.__file__))}
toolkit = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc") or "/usr/bin/nvcc")))
# Whatever else is called nvcc, as a script of one's own, lies in no toolkit.
if os.path.exists(os.path.join(toolkit, "include", "cuda_runtime.h")):
    found.add(toolkit)


def holds_home(folder):
    home = os.path.realpath(os.path.expanduser("~"))
    return os.path.commonpath([home, os.path.realpath(folder)]) == os.path.realpath(folder)


print(sys.executable)
for folder in sorted(found):
    if folder and os.path.isdir(folder) and folder not in ("/", "/usr") and not holds_home(folder):
        print(folder)
