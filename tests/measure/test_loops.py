import pytest

from hocket.measure.loops import begun, in_order, in_turn, looped, nothing, there_and_back

pytestmark = pytest.mark.timeout(30)


def calls_of(make, iterations=2):
    """What a loop calls, in order; `make` is given what notes a name."""
    noted = []
    make(lambda name: lambda *arguments: noted.append((name, *arguments)) or name)(iterations)
    return [" ".join(each) for each in noted]


def test_a_loop_owns_its_iterations():
    assert calls_of(lambda note: looped(note("a"))) == ["a", "a"]
    assert calls_of(lambda note: in_turn(note("a"), note("b"))) == ["a", "b", "a", "b"]
    assert calls_of(lambda note: in_order([note("a"), note("b"), note("c")]), 1) == ["a", "b", "c"]
    assert calls_of(lambda note: begun(note("begin"), note("wait"))) == ["begin", "wait begin"] * 2
    assert calls_of(lambda note: nothing) == []


def test_a_message_goes_there_and_back():
    def between(rank, *wait):
        return calls_of(lambda note: there_and_back(rank, note("send"), note("receive"), *map(note, wait)), 1)

    assert between(0) == ["send", "receive"]
    assert between(1) == ["receive", "send"]
    assert between(1, "wait") == ["receive", "wait receive", "send", "wait send"]
