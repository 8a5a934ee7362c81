"""Model check of the persistent GRU kernel's exchange: every order of steps of a small state machine.

Three blocks own one unit each. The steps of a block: read the word of one block, publish its own, write its state row.
A word is the number of its frame; a reader sees only the mark of its buffer.
"""

from dataclasses import dataclass, replace

import pytest

BLOCKS = 3
FRESH = "h(0)"


@dataclass(frozen=True)
class Rules:
    """Rules of the kernel; each can be switched off."""

    buffers: int = 2
    marks: bool = True
    settles: bool = True  # with one frame, states are written after an exchange
    grows: bool = True  # the epoch, from launch to launch


@dataclass(frozen=True)
class Block:
    frame: int = 0
    seen: int = 0  # bits of the blocks whose h(frame) was read
    settling: bool = False
    done: bool = False


class Violation(Exception):
    """A block read a word of another frame, or a state row that was already written."""


def mark(rules, frame):
    return frame // 2 % 2 == 0 if rules.marks else True


def acceptable(rules, word, frame):
    """Return whether a reader that waits for a frame accepts a word; a zeroed workspace has the other mark."""
    if not rules.marks:
        return True
    return word is not None and mark(rules, word) == mark(rules, frame)


def steps(rules, frames, epoch, state):
    """Yield the states after one step of one block."""
    blocks, words, rows = state
    for b, block in enumerate(blocks):
        if block.done:
            continue
        if block.seen != (1 << BLOCKS) - 1:
            for j in range(BLOCKS):
                if block.seen >> j & 1:
                    continue
                if block.frame == 0 and not block.settling:
                    if rows[j] != FRESH:
                        raise Violation("a state row was written before all blocks had read it")
                else:
                    wanted = epoch + (0 if block.settling else block.frame - 1)
                    word = words[wanted % rules.buffers][j]
                    if not acceptable(rules, word, wanted):
                        continue
                    if word != wanted:
                        raise Violation(f"frame {word} was accepted as frame {wanted}")
                yield put(blocks, b, replace(block, seen=block.seen | 1 << j)), words, rows
            continue
        yield from finish(rules, frames, epoch, state, b)


def finish(rules, frames, epoch, state, b):
    """Step of a block that has read all words: publish and continue, or write its state row."""
    blocks, words, rows = state
    block = blocks[b]
    last = block.frame + 1 == frames
    if block.settling or (last and (frames > 1 or not rules.settles)):
        yield put(blocks, b, replace(block, done=True)), words, put(rows, b, "h(T)")
        return
    number = epoch + block.frame
    buffer = number % rules.buffers
    words = put(words, buffer, put(words[buffer], b, number))
    after = Block(block.frame, settling=True) if frames == 1 else Block(block.frame + 1)
    yield put(blocks, b, after), words, rows


def put(values, at, value):
    return (*values[:at], value, *values[at + 1 :])


def explore(rules, launches):
    """Run launches one after another, each in every order of steps. Returns: number of states visited."""
    epoch, words, met = 0, ((None,) * BLOCKS,) * rules.buffers, 0
    for frames in launches:
        first = ((Block(),) * BLOCKS, words, (FRESH,) * BLOCKS)
        seen, waiting, ends = {first}, [first], set()
        while waiting:
            state = waiting.pop()
            following = set(steps(rules, frames, epoch, state))
            if not following:
                assert all(block.done for block in state[0]), "deadlock: the blocks wait for one another"
                ends.add(state[1])
            waiting += following - seen
            seen |= following
        met += len(seen)
        (words,) = ends  # every order leaves the same words
        epoch += max(frames - 1, 1) if rules.grows else 0
    return met


@pytest.mark.parametrize("launches", [(3,), (1, 1, 1, 1, 1), (2, 2, 2, 2), (3, 1, 2, 3), (1, 3, 3, 1)], ids=str)
def test_every_order_of_steps_gives_each_reader_the_frame_it_waits_for(launches):
    assert explore(Rules(), launches) > 100


@pytest.mark.parametrize(
    ("broken", "launches"),
    [
        (Rules(buffers=1), (3, 3)),
        (Rules(marks=False), (3,)),
        (Rules(settles=False), (1,)),
        (Rules(grows=False), (2, 2)),
    ],
    ids=["one buffer", "no marks", "states written at once", "epochs that do not grow"],
)
def test_each_rule_is_needed(broken, launches):
    with pytest.raises((Violation, AssertionError)):
        explore(broken, launches)
