"""The task's own reference as a submission: what is to be beaten first.

Where it writes to its data it gets copies of them, inside the clock. All others are timed without: a copy may take as
long as the work.
"""

import torch

import task_tensors

reference = task_tensors.module("reference")


def leaves_its_data(kernel):
    """Whether data are as they were afterwards, by the first problem that the operation's description lists.

    Where that cannot be found out, they are not.
    """
    try:
        data = task_tensors.Patterns(reference).generate(task_tensors.first_problem(), 1)
        kept = [task_tensors.bytes_of(leaf).clone() for _, leaf in task_tensors.leaves("in", data)]
        kernel(data)
        return all(torch.equal(task_tensors.bytes_of(leaf), one) for (_, leaf), one in zip(task_tensors.leaves("in", data), kept))
    except Exception:
        return False


custom_kernel = reference.ref_kernel
if hasattr(reference, "on_its_data") and leaves_its_data(reference.on_its_data):
    custom_kernel = reference.on_its_data
