"""What Prometheus' own parser makes of floe's numbers."""

from prometheus_client.parser import text_string_to_metric_families


def parse(text):
    """{(name, sorted labels): value}; every metric must say what it is, and nothing may be there twice."""
    assert text.endswith("\n")
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("floe_") and family.documentation and family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.timestamp is None, "the collector refuses files with times"
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    names = {name for name, _ in found}
    for what in ("HELP", "TYPE"):
        assert sum(line.startswith(f"# {what} ") for line in text.splitlines()) == len(names) > 0
    return found


def value(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))]
