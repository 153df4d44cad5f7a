"""Where the time of one step goes, from the kernels and copies that the GPU ran in it.

A timeline is {"names": [...], "events": [[index of a name, stream, begin µs, duration µs], ...]}, as
bench_h200 and torch_twin/flamingo_step.py record it. The compute stream is the one that is busy longest.
"""

import bisect
import re

FAMILIES = [  # the first that matches a kernel's name
    ("attention", r"flash|fmha|attention"),
    ("matrix products", r"gemm|nvjet|cutlass|xmma|splitK|cublas"),
    ("norms", r"layer_?norm|LayerNorm|NormShape|GammaBeta|rms_norm|RowwiseMoments"),
    ("optimizer", r"[aA]dam|multi_tensor"),
    ("loss", r"softmax|logsumexp|cross_entropy|nll"),
    ("copies and casts", r"copy|Memcpy|Memset|CatArray|fill|cast"),
    ("gathers by index", r"index|gather|scatter|embedding"),
    ("elementwise", r"elementwise|gelu|rotary|where|reduce|triton"),
]
GAP_CLASSES = (2, 5, 20, 100)  # µs: gaps below each of these, and longer ones


def family_of(kernel):
    for name, pattern in FAMILIES:
        if re.search(pattern, kernel):
            return name
    return "other"


def union(intervals):
    """Sorted intervals [begin, end] without overlap that cover the same time."""
    merged = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def overlap(a, b):
    """Time that is in both of two unions."""
    begins = [begin for begin, _ in b]
    shared = 0
    for begin, end in a:
        at = max(0, bisect.bisect_right(begins, begin) - 1)
        while at < len(b) and b[at][0] < end:
            shared += max(0, min(end, b[at][1]) - max(begin, b[at][0]))
            at += 1
    return shared


def gaps_of(events, names):
    """[µs, begin, kernel before, kernel after] of every idle moment of one stream's sorted events."""
    gaps, until, last = [], None, None
    for name, _, begin, duration in events:
        if until is not None and begin > until:
            gaps.append([begin - until, until, names[last], names[name]])
        if until is None or begin + duration > until:
            until, last = begin + duration, name
    return gaps


def classes_of(gaps):
    """{"< 2 µs": [count, ms], ...}"""
    sums = {}
    for duration, *_ in gaps:
        below = next((limit for limit in GAP_CLASSES if duration < limit), None)
        label = f"< {below} µs" if below else f">= {GAP_CLASSES[-1]} µs"
        count, time = sums.get(label, (0, 0.0))
        sums[label] = (count + 1, time + duration / 1e3)
    return sums


def kernels_of(events, names):
    """[[name, ms, launches], ...], longest first."""
    sums = {}
    for name, _, _, duration in events:
        time, launches = sums.get(name, (0.0, 0))
        sums[name] = (time + duration / 1e3, launches + 1)
    return sorted(([names[name], time, launches] for name, (time, launches) in sums.items()),
                  key=lambda row: -row[1])


def families_of(kernels):
    """{family: [ms, launches]}, longest first."""
    sums = {}
    for name, milliseconds, launches in kernels:
        time, count = sums.get(family_of(name), (0.0, 0))
        sums[family_of(name)] = (time + milliseconds, count + launches)
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def analyse(timeline, most_gaps=10):
    """None for a timeline without events (no GPU)."""
    names, by_stream = timeline["names"], {}
    for event in timeline["events"]:
        by_stream.setdefault(event[1], []).append(event)
    if not by_stream:
        return None
    for events in by_stream.values():
        events.sort(key=lambda event: event[2])
    busy = {stream: union([begin, begin + duration] for _, _, begin, duration in events)
            for stream, events in by_stream.items()}
    compute = max(busy, key=lambda stream: length(busy[stream]))
    gaps = gaps_of(by_stream[compute], names)
    kernels = kernels_of(by_stream[compute], names)
    span = max(begin + duration for _, _, begin, duration in timeline["events"]) - min(
        begin for _, _, begin, _ in timeline["events"])
    beside = [{"stream": stream, "busy_ms": length(busy[stream]) / 1e3,
               "while_computing_ms": overlap(busy[stream], busy[compute]) / 1e3,
               "kernels": kernels_of(by_stream[stream], names)[:5]} for stream in busy if stream != compute]
    return {
        "span_ms": span / 1e3,
        "busy_ms": length(busy[compute]) / 1e3,
        "launches": len(by_stream[compute]),
        "idle_ms": sum(gap[0] for gap in gaps) / 1e3,
        "gap_classes": classes_of(gaps),
        "largest_gaps": sorted(gaps, reverse=True)[:most_gaps],
        "families": families_of(kernels),
        "kernels": kernels,
        "beside": sorted(beside, key=lambda row: -row["busy_ms"]),
    }


def short(kernel, width=60):
    """A kernel's name without return type and template arguments, as far as that tells it apart."""
    name = re.sub(r"^void ", "", kernel).replace("at::native::", "").replace("(anonymous namespace)::", "")
    return name[:width]


def lines(found):
    """The analysis in words."""
    families = ", ".join(f"{name} {time:.1f} ms ({count})" for name, (time, count) in found["families"].items())
    classes = ", ".join(f"{label}: {count} = {time:.1f} ms" for label, (count, time) in found["gap_classes"].items())
    out = [f"compute stream busy {found['busy_ms']:.1f} ms of {found['span_ms']:.1f}, {found['launches']} launches: "
           + families,
           f"idle {found['idle_ms']:.1f} ms in gaps ({classes})"]
    for stream in found["beside"]:
        top = ", ".join(f"{short(name, 40)} {time:.1f} ms ({count})" for name, time, count in stream["kernels"][:2])
        out.append(f"beside, stream {stream['stream']}: {stream['busy_ms']:.1f} ms, "
                   f"{stream['while_computing_ms']:.1f} of them while the compute stream works: {top}")
    for duration, begin, before, after in found["largest_gaps"]:
        if duration >= 20:
            out.append(f"gap {duration:.0f} µs at {begin / 1e3:.1f} ms: {short(before)} -> {short(after)}")
    return out
