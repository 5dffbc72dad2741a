"""CPython's own tests of its network modules, from Debian's libpython3.11-testsuite, on both stacks.

A module passes when every test that is ok on the kernel's stack is ok on OpenTOE. Tests that differ are run again without
the others, two times on both stacks: one that is not always ok on the kernel's stack is told as such and does not count,
and for the others it is told how often they failed.
"""

import re

import runner

PYTHON = "/usr/bin/python3.11"
MODULES = (
    "test_socket", "test_asyncio.test_streams", "test_asyncio.test_sock_lowlevel", "test_asyncio.test_server",
    "test_asyncio.test_sendfile", "test_asyncio.test_selector_events", "test_asyncio.test_events",
    "test_asyncio.test_sslproto", "test_asyncio.test_buffered_proto", "test_asyncio.test_base_events",
    "test_asyncio.test_unix_events", "test_asyncio.test_subprocess", "test_selectors", "test_select", "test_poll",
    "test_epoll", "test_socketserver", "test_httplib", "test_httpservers", "test_ftplib", "test_smtplib",
    "test_imaplib", "test_poplib", "test_telnetlib", "test_ssl", "test_xmlrpc", "test_urllib2_localnet",
    "test_subprocess", "test_multiprocessing_fork",
)
GROUPS = {
    "datagrams": (
        ("test_socket", "test_asyncio.test_events", "test_asyncio.test_sock_lowlevel", "test_asyncio.test_base_events",
         "test_asyncio.test_selector_events", "test_socketserver"),
        ("*UDP*", "*Udp*", "*udp*", "*Datagram*", "*datagram*", "*recvfrom*", "*sendto*", "*recvmsg*", "*Recvmsg*", "*RecvMsg*"),
    ),
}
"""Rows of some tests of several modules: those of UDP, which the modules' own rows have among the others."""
NETWORK = {"test_socketserver", "datagrams"}
"""Modules that want the resource `network` for connections to this machine."""
IGNORED = ("ThreadedVSOCKSocketStreamTest",)
"""Tests that reach beyond this machine: this one waits for ever in a virtual machine."""
LIMIT = 300
"""Seconds for one module on one stack."""
AGAIN_LIMIT = 120
TRIES = 2
OK = {"ok", "expected failure"}
# `test_name (test.module.Class.test_name) ... ok`, also with the first line of a docstring and a test's own output
# between the name and the outcome, which then ends a later line.
START = re.compile(r"^(\w+) \((test\.[\w.]+)\)(?P<rest>.*)$")
OUTCOME = re.compile(r"(?:^|\.\.\. |\b)(ok|FAIL|ERROR|expected failure|unexpected success|skipped .*)$")


def rows():
    return [f"cpython/{module}" for module in (*MODULES, *GROUPS)]


def parse(text):
    """{test: outcome} of unittest's verbose output; a test that never ended has the outcome "hangs"."""
    found, current = {}, None
    for line in text.splitlines():
        if line.startswith("=" * 60):
            break
        if start := START.match(line):
            current = start.group(2)
            if not current.endswith(f".{start.group(1)}"):
                current = f"{current}.{start.group(1)}"
            found[current] = "hangs"
            line = start["rest"]
        if current and (outcome := OUTCOME.search(line)):
            found[current] = outcome.group(1).split()[0] if outcome.group(1).startswith("skipped") else outcome.group(1)
            current = None
    return found


def run_tests(module, names, stack, work, limit):
    """Runs a module, or some tests of it: ({test: outcome}, what the runner knows)."""
    resources = "network" if module in NETWORK else "none"
    modules, patterns = GROUPS.get(module, ((module,), ()))
    words = [PYTHON, "-m", "test", "-v", "--timeout", limit - 20, "-u", resources, *modules]
    for name in IGNORED:
        words += ["-i", name]
    for name in names or patterns:
        words += ["-m", name]
    known = runner.run(words, stack, work, limit)
    with open(known["log"], errors="replace") as log:
        return parse(log.read()), known


def run(name, stacks, work):
    """One row of the table."""
    module = name.removeprefix("cpython/")
    found, row = {}, {"name": name, "stacks": {}, "differences": [], "flapping": []}
    for stack in stacks:
        found[stack], row["stacks"][stack] = run_tests(module, [], stack, work / stack, LIMIT)
        good = sum(outcome in OK for outcome in found[stack].values())
        print(f"{stack} {good}/{len(found[stack])}  ", end="", flush=True)
    some = found.get("kernel") or found[stacks[0]]
    row["tests"] = {"kernel ok": sum(outcome in OK for outcome in some.values()), "others": others(some)}
    if len(found) == 2:
        compare(module, found, row, work)
    lost = len(row["differences"]) if found.get("toe") else row["tests"]["kernel ok"]
    row["tests"]["same"] = row["tests"]["kernel ok"] - lost - len(row["flapping"])
    row["good"] = bool(row["tests"]["kernel ok"]) and not row["differences"]
    return row


def compare(module, found, row, work):
    if not found["toe"]:
        row["differences"] = [[f"all {row['tests']['kernel ok']} tests", "none ran"]]
        return
    suspects = {test: found["toe"].get(test, "never reached") for test, outcome in found["kernel"].items()
                if outcome in OK and found["toe"].get(test) not in OK}
    failures = dict.fromkeys(suspects, 1)
    for attempt in range(TRIES):
        for stack in runner.STACKS if suspects else ():
            again, _ = run_tests(module, sorted(suspects), stack, work / f"again-{attempt}-{stack}", AGAIN_LIMIT)
            wrong = [test for test in suspects if again.get(test, "never reached") not in OK]
            if stack == "toe":
                failures.update({test: failures[test] + 1 for test in wrong})
            else:
                row["flapping"] += wrong
                suspects = {test: outcome for test, outcome in suspects.items() if test not in wrong}
    row["differences"] = [[test, f"{outcome} ({failures[test]} of {TRIES + 1} runs)"]
                          for test, outcome in sorted(suspects.items())]


def others(outcomes):
    """What the other tests did on the kernel's stack, in words."""
    counts = {}
    for outcome in outcomes.values():
        if outcome not in OK:
            counts[outcome] = counts.get(outcome, 0) + 1
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none"
