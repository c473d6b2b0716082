"""This package as a build of Hugging Face's ``kernels`` library, which puts kernels in place of a model's ``forward``.

    python -m hammerhead.kernels FOLDER

writes such a build, and ``hammerhead.kernels.layers`` is what models find in it. ``kernels`` itself is needed by
programs that load the folder, not by the command.
"""
