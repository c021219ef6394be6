"""Mistakes at the command line, and in the programs and variables of a job."""

from __future__ import annotations

from .mistake import Mistake

_PRINTS = "print('here')\n"
_INIT = "import hocket as hk\ncomm = hk.init(timeout=20)\n"

COMMANDS = {
    "hocket run": (
        Mistake("hocket rnu", 2, ("'rnu'", "'run'")),
        Mistake("hocket --versoin", 2, ("--versoin", "--version")),
        Mistake("hocket run", 2, ("'SCRIPT'", "hocket run --help")),
        Mistake("hocket run -n two program.py", 2, ("-n", "'two'"), _PRINTS),
        Mistake("hocket run -n 0 program.py", 2, ("-n", "0", "hocket run -n 2"), _PRINTS),
        Mistake("hocket run -n 2 nothere.py", 2, ("'nothere.py'",)),
        Mistake("hocket run -n 2 program", 2, ("'program'", "program.py"), _PRINTS),
        Mistake("hocket run -n 2 .", 2, ("'.'", "__main__.py")),
        Mistake("hocket run -n 2 -m nothere", 2, ("'nothere'",)),
        Mistake("hocket run -n 2 -m program.py", 2, ("-m", "program"), _PRINTS),
        Mistake("hocket run -n 2 --tag program.py", 2, ("--tag", "--tag-output"), _PRINTS),
        Mistake("hocket run -n 99999 program.py", 2, ("99999", "--oversubscribe"), _PRINTS, varies=True),
        Mistake("hocket run -n 2 --nnodes 2 program.py", 2, ("--master-addr", "--master-port"), _PRINTS),
        Mistake(
            "hocket run -n 2 --nnodes 2 --node-rank 2 --master-addr a --master-port 9 program.py",
            2,
            ("--node-rank", "2"),
            _PRINTS,
        ),
        Mistake("hocket run -n 2 --master-port 99999 program.py", 2, ("--master-port", "99999", "65535"), _PRINTS),
    ),
    "Programs under hocket run": (
        Mistake("hocket run -n 2 program.py", 1, ("SyntaxError", "program.py"), "def f(:\n", varies=True),
        Mistake("hocket run -n 2 program.py", 3, ("3",), "raise SystemExit(3)\n", varies=True),
        Mistake("hocket run -n 2 program.py", 139, ("SIGSEGV",), "import os\nos.kill(os.getpid(), 11)\n", varies=True),
        Mistake(
            "hocket run -n 2 program.py", 1, ("AttributeError", "'foo'", "program.py"), "x = 3\nx.foo\n", varies=True
        ),
        Mistake(
            "hocket run -n 2 program.py",
            1,
            ("rank 0", "InvalidArgument", "'summ'", "'sum'", "program.py"),
            _INIT + "import numpy as np\ncomm.all_reduce(np.ones(2), 'summ')\n",
            varies=True,
        ),
    ),
    "Variables": (
        Mistake("HOCKET_ISA=avx3 hocket run -n 2 program.py", 2, ("HOCKET_ISA=avx3", "scalar"), _INIT, varies=True),
        Mistake(
            "HOCKET_TABLE=nothere.json hocket run -n 2 program.py",
            1,
            ("HOCKET_TABLE", "nothere.json"),
            _INIT,
            varies=True,
        ),
        Mistake("HOCKET_TABLE=program.py hocket run -n 2 program.py", 1, ("HOCKET_TABLE", "JSON"), _INIT, varies=True),
        Mistake("HOCKET_LEARN=yes hocket run -n 2 program.py", 1, ("HOCKET_LEARN", "'yes'", "0"), _INIT, varies=True),
        Mistake(
            "HOCKET_BACKENDS=mpii hocket run -n 2 program.py",
            1,
            ("HOCKET_BACKENDS", "'mpii'", "'mpi'"),
            _INIT,
            varies=True,
        ),
        Mistake(
            "HOCKET_PROGRES=thread hocket run -n 2 program.py",
            0,
            ("HOCKET_PROGRES", "'HOCKET_PROGRESS'"),
            _INIT,
            varies=True,
        ),
        Mistake("WORLD_SIZE=2 python program.py", 1, ("WORLD_SIZE", "RANK"), _INIT, varies=True),
        Mistake(
            "RANK=3 WORLD_SIZE=2 MASTER_PORT=9 python program.py", 1, ("RANK=3", "WORLD_SIZE=2"), _INIT, varies=True
        ),
        Mistake("RANK=a WORLD_SIZE=2 MASTER_PORT=9 python program.py", 1, ("RANK='a'",), _INIT, varies=True),
        Mistake("RANK=0 WORLD_SIZE=2 python program.py", 1, ("MASTER_PORT", "MASTER_ADDR"), _INIT, varies=True),
    ),
    "Measuring and tuning": (
        Mistake("hocket bench run", 2, ("hocket bench list",)),
        Mistake("hocket bench run latncy", 2, ("'latncy'", "'latency'")),
        Mistake("hocket bench run latency --sizes 8,x", 2, ("'x'", "64KiB")),
        Mistake("hocket bench run latency --library shmm", 2, ("'shmm'", "'shm'")),
        Mistake("hocket bench run latency --dtype float31", 2, ("'float31'", "float32")),
        Mistake("hocket bench run latency -n 0", 2, ("-n", "0")),
        Mistake("hocket bench compare a.json", 2, ("'B'", "hocket bench compare --help")),
        Mistake("hocket bench compare shm mpi --launches 0", 2, ("--launches", "0")),
        Mistake("hocket bench apps kmeans --scale 4", 2, ("kmeans", "24", "4")),
        Mistake("hocket bench report nothere.json", 2, ("nothere.json",)),
        Mistake("hocket tune run -n 1", 2, ("-n", "2", "1")),
        Mistake("hocket tune show nothere.json", 2, ("nothere.json",)),
        Mistake("hocket tune show program.py", 2, ("program.py", "JSON"), _PRINTS),
        Mistake("hocket explain", 2, ("'OPERATION'", "hocket explain --help")),
        Mistake("hocket explain all_reduc", 2, ("'all_reduc'", "'all_reduce'")),
    ),
    "Planning and training": (
        Mistake("hocket collectives list allreduce", 2, ("'allreduce'", "'all_reduce'")),
        Mistake("hocket collectives draw all_reduce rng -n 4 -o a.png", 2, ("'rng'", "'ring'")),
        Mistake("hocket collectives draw all_reduce ring -n 0 -o a.png", 2, ("1", "0")),
        Mistake("hocket collectives draw all_reduce ring -n 4 -o a.xyz", 2, ("a.xyz", ".png")),
        Mistake("hocket pipeline draw chimer -n 4 -o a.png", 2, ("'chimer'", "'chimera'")),
        Mistake("hocket pipeline draw chimera -n 3 -o a.png", 2, ("chimera", "3")),
        Mistake("hocket pipeline chek", 2, ("'chek'",)),
        Mistake("hocket pipeline simulate gpipe 1f1b --param x=1", 2, ("--param", "2")),
        Mistake("hocket train", 2, ("'--model'",)),
        Mistake("hocket train --model resnt", 2, ("'resnt'", "resnet20-v2")),
        Mistake(
            "hocket train --model program.py:net",
            2,
            ("RuntimeError", "broken"),
            "def net():\n    raise RuntimeError('broken')\n",
            varies=True,
        ),
        Mistake("hocket train --model program.py:net", 2, ("'program.py:net'", "int"), "net = 3\n"),
        Mistake(
            "hocket train --model program.py:net --data program.py:five",
            2,
            ("int",),
            "import torch\n\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Linear(4, 2))\n\n\nfive = 5\n",
        ),
        Mistake("hocket tune run -o /proc/x.json", 2, ("/proc/x.json",), varies=True),
        Mistake("hocket bench run latency --json --format osu", 2, ("--json", "osu")),
        Mistake("hocket bench run latency --sizes 8 --max 4", 2, ("--sizes", "--max")),
        Mistake("hocket bench run latency -i -3", 2, ("-i", "-3")),
        Mistake("hocket pipeline simulate 1f1b --bandwidth -1", 2, ("--bandwidth", "-1.0")),
        Mistake("hocket pipeline simulate 1f1b --cost F=-1", 2, ("'F=-1'", "0")),
        Mistake("hocket collectives simulate all_reduce ring --latency inf", 2, ("--latency", "inf")),
        Mistake("hocket collectives verify --file program.py --ranks 7", 2, ("schedule",), _PRINTS),
        Mistake("hocket tune run --ops ''", 2, ("''", "all_reduce")),
        Mistake("hocket bench run latency --sizes 500GiB", 2, ("500 GiB",), varies=True),
        Mistake("hocket pipeline choose --model program.py -n 4", 2, ("'format'", "num_layers"), '{"format": 1}'),
        Mistake("hocket simulate nothere.py", 2, ("'nothere.py'", "gpt-345m")),
    ),
}
