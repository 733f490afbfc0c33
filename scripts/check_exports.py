"""Checks the exports in a folder, as check-exports writes them, against each other and against the report.

    check_exports.py FOLDER FORMAT...

No library is needed: what other tools silently rely on is spelled out here.
"""

import gzip
import json
import pickle
import re
import sys
import xml.etree.ElementTree
from pathlib import Path


class PlainData(pickle.Unpickler):
    """Reads pickles of plain data, and nothing that would call a function."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} in a snapshot")


def check_snapshot(folder, peak):
    """Replays the events of a snapshot forwards, and compares what is there at the end with its map."""
    with open(folder / "run.memory-viz", "rb") as file:
        snapshot = PlainData(file).load()
    categories = {event["category"] for trace in snapshot["device_traces"] for event in trace}
    assert "unknown" in categories, "viewers up to May 2026 need one event of category 'unknown'"
    events = 0
    total, peak_requested = 0, 0
    for device, trace in enumerate(snapshot["device_traces"]):
        segments, live = {}, {}
        for index, event in enumerate(trace):
            events += 1
            action, address, size = event["action"], event.get("addr"), event["size"]
            if action == "segment_alloc":
                assert all(address >= start + other or start >= address + size for start, other in segments.items())
                segments[address] = size
            elif action == "segment_free":
                assert segments.pop(address) == size
            elif action == "alloc":
                assert address not in live, f"event {index}: {address:#x} is taken"
                assert any(start <= address and address + size <= start + other for start, other in segments.items())
                live[address] = size
                total += size
                peak_requested = max(peak_requested, total)
            elif action == "free_requested":
                after = trace[index + 1]
                assert (after["action"], after["addr"]) == ("free_completed", address), f"event {index}"
            elif action == "free_completed":
                assert live.pop(address) == size
                total -= size
            elif action == "oom":
                assert event["device_free"] >= 0
            else:
                raise AssertionError(f"event {index}: unknown action {action}")
        of_device = [segment for segment in snapshot["segments"] if segment["device"] == device]
        assert segments == {segment["address"]: segment["total_size"] for segment in of_device}
        shown = {}
        for segment in of_device:
            address = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == address and block["size"] > 0, "blocks leave a gap"
                address += block["size"]
                if block["state"] == "active_allocated":
                    shown[block["address"]] = block["requested_size"]
            assert address == segment["address"] + segment["total_size"], "blocks leave a gap at the end"
        assert shown == live, "the map at the end is not what the events lead to"
    assert 0 < peak_requested <= peak
    print(f"memory-viz: {events} events lead to the map; at most {peak_requested} bytes requested at a time")


def check_snapshot_json(folder, _peak):
    """Compares both forms of the snapshot."""
    with open(folder / "run.memory-viz", "rb") as file:
        snapshot = PlainData(file).load()
    assert snapshot == json.loads((folder / "run.memory-viz-json").read_text()), "pickle and JSON differ"
    print("memory-viz-json: as memory-viz")


def check_chrome(folder, peak):
    """Adds up the instants, and compares the sums with the totals and the curves."""
    trace = json.loads((folder / "run.chrome").read_text())["traceEvents"]
    live, highest, slices = {}, 0, 0
    for event in trace:
        arguments = event.get("args", {})
        if event.get("name") == "[memory]":
            device = (arguments["Device Type"], arguments["Device Id"])
            live[device] = live.get(device, 0) + arguments["Bytes"]
            highest = max(highest, arguments["Total Allocated"])
            if len(live) == 1:
                assert live[device] == arguments["Total Allocated"] <= arguments["Total Reserved"]
        elif event["ph"] == "X":
            slices += 1
            assert event["dur"] >= 0 and {"peak_bytes", "net_bytes", "live_before"} <= set(arguments)
    counters = [event["args"] for event in trace if event["ph"] == "C"]
    assert highest <= peak and slices > 0 and max(args.get("allocated", 0) for args in counters) == highest
    print(f"chrome: {len(trace)} events, {slices} of them ops; at most {highest} bytes live")


def fields(message):
    """The fields of a protocol buffer: number and value."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            assert kind == 2, f"wire type {kind}"
            length = varint()
            yield number, message[position : position + length]
            position += length


def packed(message):
    """The numbers of a packed field."""
    numbers, value, shift = [], 0, 0
    for byte in message:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    return numbers


def check_pprof(folder, peak):
    """Every sample's stack has names, and the bytes of all samples are the peak."""
    profile = list(fields(gzip.decompress((folder / "run.pprof").read_bytes())))
    texts = [value.decode() for number, value in profile if number == 6]
    assert texts[0] == ""
    types = [dict(fields(value)) for number, value in profile if number == 1]
    assert [(texts[kind[1]], texts[kind[2]]) for kind in types] == [("blocks", "count"), ("space", "bytes")]
    functions = {function[1]: texts[function[2]] for function in (dict(fields(v)) for n, v in profile if n == 5)}
    locations = {place[1]: functions[dict(fields(place[4]))[1]] for place in (dict(fields(v)) for n, v in profile if n == 4)}
    space = 0
    for sample in (dict(fields(value)) for number, value in profile if number == 2):
        assert all(locations[place] for place in packed(sample[1]))
        space += packed(sample[2])[1]
    assert space == peak, f"samples of {space} bytes, a peak of {peak}"
    print(f"pprof: {len(locations)} places hold {space} bytes at the peak")


def check_folded(folder, peak):
    lines = (folder / "run.folded").read_text().splitlines()
    matches = [re.fullmatch(r"(?:[^;]+;)*\[[a-z_ ]+\] (\d+)", line) for line in lines]
    assert all(matches) and sum(int(match[1]) for match in matches) == peak
    print(f"folded: {len(lines)} stacks hold the peak")


def check_svg(folder, _peak):
    root = xml.etree.ElementTree.parse(folder / "run.svg").getroot()
    areas = [path for path in root if path.get("fill") and path.tag.endswith("path")]
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and areas
    print(f"svg: {len(areas)} areas")


CHECKS = {
    "memory-viz": check_snapshot,
    "memory-viz-json": check_snapshot_json,
    "chrome": check_chrome,
    "pprof": check_pprof,
    "folded": check_folded,
    "svg": check_svg,
}


def main():
    folder, formats = Path(sys.argv[1]), sys.argv[2:]
    if set(formats) != set(CHECKS):
        sys.exit(f"the formats are {', '.join(formats)}, but the checks in {__file__} are {', '.join(CHECKS)}")
    peak = json.loads((folder / "run.report").read_text())["peak"]["bytes"]
    for name in formats:
        CHECKS[name](folder, peak)


if __name__ == "__main__":
    main()
