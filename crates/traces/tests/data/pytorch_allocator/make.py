#!/usr/bin/env python3
"""Writes the expected values of the test `pytorch_allocator`: the decisions of PyTorch's CUDA caching allocator.

    python3 make.py write ORACLE TRACES   writes the files of this folder
    python3 make.py program NUMBER        prints a random program
    python3 make.py show ORACLE PROGRAM SETTINGS
                                          prints each event of a program or a trace, and the allocator's answer

ORACLE is a program that replays events through the CUDACachingAllocator of the `torch` wheel (here 2.15.0) over a
device that consists of addresses only, as `ORACLE CAPACITY SETTINGS [FRACTION] < EVENTS`. SETTINGS are those of
PYTORCH_CUDA_ALLOC_CONF, or `-`. FRACTION is the argument of `set_per_process_memory_fraction`; without a fraction below
1, PyTorch ignores `garbage_collection_threshold`. Events are lines `a ID BYTES`, `a ID BYTES STREAM` (any number as the handle of the
stream) and `f ID`. The program answers each event with a line:

    OFFSET of SEGMENT RESERVED ALLOCATED  for an allocation; `- of - ...` with expandable segments
    freed RESERVED ALLOCATED              for a free, also of an allocation that failed, which changes nothing
    oom RESERVED                          for a failed allocation

TRACES is a folder with recorded traces, NAME.trace.gz.

Random programs
---------------
Program N uses splitmix64 with the seed N. below(n) is the next number modulo n. `program` has the order of the draws.
Programs from 1,000 on have larger small devices, those from 2,000 on have three streams.

Files
-----
`programs.txt.gz`, `more_programs.txt.gz` and `traces.txt.gz`: lines `program NUMBER CAPACITY EVENTS` or `trace NAME CAPACITY EVENTS`, each
followed by a line per settings:

    INDEX RUNS FAILED DIGESTS

INDEX: of SETTINGS, `=` and another index in place of the rest if the lines are equal. RUNS: the reserved bytes after
each event as runs `EVENTS:RESERVED`, in units of 2 MiB, separated by commas. FAILED: the numbers of the events that ran
out of memory, or `-`. DIGESTS: one for every 64 events of a program or 1,000 of a trace, of these words:

    allocation  offset in its segment, bytes of the segment (neither with expandable segments), allocated bytes
    free        allocated bytes
    failure     2**64 - 1

`examples.txt` has a few programs in full. `NAME.trace.gz` are the traces without labels, as text of Highwater.
"""
import gzip
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
MIB = 1 << 20
MASK = (1 << 64) - 1
PROGRAMS = range(1000)
GARBAGE_PROGRAMS = range(1000, 1400)
STREAM_PROGRAMS = range(2000, 2200)
UNIT = 2 * MIB

SETTINGS = [
    "-",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[4:2,16:4,64:8,>:16]",
    "expandable_segments:True,max_split_size_mb:128",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:32,max_non_split_rounding_mb:24,roundup_power2_divisions:2",
    "large_segment_size_mb:64",
    "large_segment_size_mb:64,expandable_segments:True",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.8,max_split_size_mb:64",
]

# Programs and traces use these, further programs those that follow.
EVERYWHERE = range(14)
GARBAGE = range(14, 16)
STREAMS = [0, 1, 3, 9, 14]

# The device of programs and traces, if memory is not scarce.
LARGE_DEVICE = 80 << 30
SMALL_DEVICES = [32, 48, 64, 100, 256, 700, 1500, 4000]

# Devices on which memory is scarce, as percentages of a trace's peak of live bytes.
SCARCE_PERCENT = [105, 130]


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


def near(random, mib):
    """A size at or near a border."""
    return mib * MIB + [-513, -512, -1, 0, 1, 512, 513][random.below(7)]


def size(random, kind, sizes):
    """The bytes of the next allocation."""
    if kind == 0:
        return 1 + random.below(512)
    if kind == 1:
        blocks = 1 + random.below(16)
        return 512 * blocks - 1 + random.below(3)
    if kind == 2:
        return 1 + random.below(64 << 10)
    if kind == 3:
        return 1 + random.below(MIB)
    if kind == 4:
        return near(random, 1)
    if kind == 5:
        return near(random, 2)
    if kind == 6:
        return near(random, 10)
    if kind == 7:
        return near(random, 20)
    if kind == 8:
        return near(random, [20, 32, 64, 128, 512][random.below(5)])
    if kind == 9:
        return MIB + random.below(9 * MIB)
    if kind == 10:
        return 10 * MIB + random.below(30 * MIB)
    if kind == 11:
        return 40 * MIB + random.below(260 * MIB)
    if kind == 12:
        power = 1 << (20 + random.below(10))
        return power + random.below(power)
    if kind == 13:
        power = 1 << (9 + random.below(11))
        return power + random.below(power)
    if kind == 14:
        return sizes[random.below(len(sizes))] if sizes else 512
    return 300 * MIB + random.below(1200 * MIB)


def program(number):
    """The capacity of the device and the events of a program: (ID, BYTES, STREAM), or (ID, None, 0) for a free."""
    random = Random(number)
    small = SMALL_DEVICES[random.below(8)] * MIB
    capacity = 8 * small if number >= 1000 else small if number % 4 == 3 else LARGE_DEVICE
    length = 60 + random.below(160)
    kinds = [random.below(16) for _ in range(1 + random.below(5))]
    free_percent = [10, 35, 45, 48, 50, 60][random.below(6)]
    keep_percent = [0, 10, 30][random.below(3)]
    events, sizes, live = [], [], []
    while len(events) < length:
        if random.below(40) == 0:
            # Frees all but the allocations that stay.
            events += [(id, None, 0) for id in live]
            live = []
        elif live and random.below(100) < free_percent:
            order = random.below(4)
            index = len(live) - 1 if order == 0 else 0 if order == 1 else random.below(len(live))
            events.append((live.pop(index), None, 0))
        else:
            kind = kinds[random.below(len(kinds))]
            bytes = size(random, kind, sizes)
            events.append((len(sizes), bytes, random.below(3) if number >= 2000 else 0))
            if random.below(100) >= keep_percent:
                live.append(len(sizes))
            sizes.append(bytes)
    return capacity, events


def trace(path):
    """The events of a trace."""
    events = []
    for line in gzip.open(path, "rt"):
        fields = line.split()
        if fields and fields[0] in "af":
            events.append((int(fields[1]), int(fields[2]) if fields[0] == "a" else None, 0))
    return events


def text(events):
    def line(id, bytes, stream):
        return f"f {id}\n" if bytes is None else f"a {id} {bytes} {stream}\n" if stream else f"a {id} {bytes}\n"

    return "".join(line(*event) for event in events)


def peak(events):
    """The peak of live bytes."""
    live, sizes, most = 0, {}, 0
    for id, bytes, _ in events:
        if bytes is None:
            live -= sizes.pop(id)
        else:
            sizes[id] = bytes
            live += bytes
        most = max(most, live)
    return most


def answers(oracle, capacity, settings, events):
    """The answers of the allocator."""
    # The same limit as a fraction of a larger device.
    device = [str(2 * capacity), settings, "0.5"] if "garbage" in settings else [str(capacity), settings]
    command = [oracle, *device]
    found = subprocess.run(command, input=text(events), capture_output=True, text=True, check=True)
    lines = found.stdout.splitlines()
    assert len(lines) == len(events), (command, found.stderr)
    return lines


def digest(words):
    h = 0xCBF29CE484222325
    for word in words:
        h = ((h ^ word) * 0x100000001B3) & MASK
        h ^= h >> 29
    return f"{h >> 32:08x}"


def summary(lines, window):
    """The line of one run: reserved bytes, failures and digests."""
    runs, failed, digests, words = [], [], [], []
    for number, line in enumerate(lines):
        fields = line.split()
        if fields[0] == "oom":
            reserved = int(fields[1])
            failed.append(str(number))
            words.append(MASK)
        elif fields[0] == "freed":
            reserved = int(fields[1])
            words.append(int(fields[2]))
        else:
            reserved = int(fields[3])
            if fields[0] != "-":
                words += [int(fields[0]), int(fields[2])]
            words.append(int(fields[4]))
        assert reserved % UNIT == 0
        if runs and runs[-1][1] == reserved // UNIT:
            runs[-1][0] += 1
        else:
            runs.append([1, reserved // UNIT])
        if (number + 1) % window == 0 or number + 1 == len(lines):
            digests.append(digest(words))
            words = []
    runs = ",".join(f"{events}:{reserved}" for events, reserved in runs)
    return f"{runs} {','.join(failed) or '-'} {','.join(digests)}"


def summaries(oracle, capacity, events, window, chosen):
    """One line for each of the chosen settings."""
    known, lines = {}, []
    for index in chosen:
        line = summary(answers(oracle, capacity, SETTINGS[index], events), window)
        lines.append(f"{index} ={known[line]}\n" if line in known else f"{index} {line}\n")
        known.setdefault(line, index)
    return "".join(lines)


def compressed(name, content):
    """Writes a file that depends only on its content."""
    (FOLDER / name).write_bytes(gzip.compress(content.encode(), 9, mtime=0))


def write(oracle, traces):
    def of_program(number):
        capacity, events = program(number)
        chosen = EVERYWHERE if number in PROGRAMS else GARBAGE if number in GARBAGE_PROGRAMS else STREAMS
        return f"program {number} {capacity} {len(events)}\n" + summaries(oracle, capacity, events, 64, chosen)

    def of_trace(job):
        name, events, capacity = job
        return f"trace {name} {capacity} {len(events)}\n" + summaries(oracle, capacity, events, 1000, EVERYWHERE)

    heading = "".join(f"settings {index} {settings}\n" for index, settings in enumerate(SETTINGS))
    with ThreadPoolExecutor(2) as pool:
        compressed("programs.txt.gz", heading + "".join(pool.map(of_program, PROGRAMS)))
        more = [*GARBAGE_PROGRAMS, *STREAM_PROGRAMS]
        compressed("more_programs.txt.gz", heading + "".join(pool.map(of_program, more)))
        jobs = []
        for path in sorted(Path(traces).glob("*.trace.gz")):
            events = trace(path)
            name = path.name.removesuffix(".trace.gz")
            labelled = text(events).replace("\n", " x\n")
            lines = "".join(line.removesuffix(" x\n") + "\n" if line[0] == "f" else line for line in labelled.splitlines(True))
            compressed(path.name, lines)
            scarce = [peak(events) * percent // 100 // UNIT * UNIT for percent in SCARCE_PERCENT]
            jobs += [(name, events, capacity) for capacity in [LARGE_DEVICE, *scarce]]
        compressed("traces.txt.gz", heading + "".join(pool.map(of_trace, jobs)))
    examples = "Programs in full, as `make.py show` prints them.\n"
    for number, index in [(7, 0), (7, 1), (11, 3), (12, 6)]:
        examples += f"\nprogram {number}, settings {SETTINGS[index]}\n{shown(oracle, *program(number), SETTINGS[index])}"
    (FOLDER / "examples.txt").write_text(examples)


def shown(oracle, capacity, events, settings):
    lines = f"device of {capacity} bytes; answers: OFFSET of SEGMENT RESERVED ALLOCATED\n"
    for number, (event, answer) in enumerate(zip(text(events).splitlines(), answers(oracle, capacity, settings, events))):
        lines += f"{number:5} {event:24} {answer}\n"
    return lines


def main(arguments):
    match arguments:
        case ["write", oracle, traces]:
            write(oracle, traces)
        case ["program", number]:
            capacity, events = program(int(number))
            print(f"capacity {capacity}\n{text(events)}", end="")
        case ["show", oracle, what, settings]:
            if what.isdigit():
                capacity, events = program(int(what))
            else:
                path, _, capacity = what.partition("@")
                capacity, events = int(capacity or LARGE_DEVICE), trace(path)
            print(shown(oracle, capacity, events, settings), end="")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
