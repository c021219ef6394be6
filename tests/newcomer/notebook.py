"""Make a notebook whose cells start ranks, and run it in a separate kernel with nbclient."""

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

CELLS = [
    "import hocket as hk, numpy as np",
    "def program(comm):\n    x = np.full(9, 3.0 * comm.rank)\n    comm.all_reduce(x)\n    return float(x[0])",
    "hk.spawn(program, 2)",
    "try:\n    hk.spawn(lambda comm: 1 / comm.rank, 2)\nexcept ZeroDivisionError as error:\n    print(error)",
    "hk.init().size",
]
notebook = new_notebook(cells=[new_code_cell(each) for each in CELLS])
NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
results = [
    "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    for cell in notebook.cells
]
nbformat.validate(notebook)
assert [float(each) for each in results[2].strip("[]").split(", ")] == [3.0, 3.0], results
assert "division by zero" in results[3] and results[4] == "1", results
print("all cells are correct")
