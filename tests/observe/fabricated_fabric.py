"""Fat trees, as the tools of InfiniBand would print them, and what `hocket observe fabric` makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from hocket.observe import FabricSweep, InfinibandFabric, parse_fabric
from hocket.observe.fabric_file import FabricFile
from hocket.observe.fabric_sweep import DATA, ERRORS

SECONDS = 2.0
RATE = 12.5e9
"""Of 4x EDR, in bytes/s."""


def fat_tree(num_leaves: int, num_spines: int, num_hosts: int, *, without: str = "") -> InfinibandFabric:
    """Two levels of switches; `num_hosts` at each leaf, and all leaves connected to all spines.

    Args:
        num_leaves, num_spines, num_hosts: of the tree.
        without: name of a spine whose first link is down.
    """
    names = {f"spine{spine}": 0x3000 + spine for spine in range(num_spines)}
    names |= {f"leaf{leaf}": 0x2000 + leaf for leaf in range(num_leaves)}
    names |= {f"host{number}": 0x100000 + number for number in range(num_leaves * num_hosts)}
    lids = {name: lid for lid, name in enumerate(names, 1)}

    def end(name: str, port: int) -> str:
        kind = "CA" if name.startswith("host") else "SW"
        return f"{kind} {lids[name]} {port} 0x{names[name]:016x}"

    def cables() -> Iterator[tuple[str, int, str, int]]:
        for leaf in range(num_leaves):
            for host in range(num_hosts):
                yield f"host{leaf * num_hosts + host}", 1, f"leaf{leaf}", host + 1
            for spine in range(num_spines):
                if (leaf, f"spine{spine}") != (0, without):
                    yield f"leaf{leaf}", num_hosts + spine + 1, f"spine{spine}", leaf + 1

    lines = []
    for one, one_port, other, other_port in cables():
        lines.append(f"{end(one, one_port)} 4x EDR - {end(other, other_port)} ( '{one}' - '{other}' )")
        lines.append(f"{end(other, other_port)} 4x EDR - {end(one, one_port)} ( '{other}' - '{one}' )")
    return parse_fabric("\n".join(lines))


def fabric_file(num_leaves: int = 3, num_spines: int = 2, num_hosts: int = 3) -> FabricFile:
    """A fabric in which the n-th port has sent n of 1000 parts of what it can; one port did not answer, one has errors
    and one counter at its largest value, and one link goes down."""
    fabric = fat_tree(num_leaves, num_spines, num_hosts)
    keys = [key for key, port in fabric.ports.items() if port.peer]
    zero = dict.fromkeys((*DATA, *ERRORS, "send_waits"), 0.0)
    before = FabricSweep(10.0, 0.25, dict.fromkeys(keys, zero))
    after = {key: {**zero, "sent_nbytes": number % 1000 * RATE * SECONDS / 1000} for number, key in enumerate(keys)}
    leaf = next(guid for guid, node in fabric.nodes.items() if node.name == "leaf1")
    after[leaf, 1] |= {"symbol_errors": 7.0, "link_downs": float("nan")}
    del after[leaf, 2]
    changes = fat_tree(num_leaves, num_spines, num_hosts, without="spine0").changes_since(fabric)
    return FabricFile.of(fabric, before, FabricSweep(10.0 + SECONDS, 0.25, after), changes, len(keys))
