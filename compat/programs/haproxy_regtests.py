"""haproxy's own regression tests (its source package), run by varnishtest: which pass"""

import os
import pathlib

from lib import expect, script


def main(lab):
    lab.version("haproxy", "-v")
    place = pathlib.Path(lab.program("haproxy-regtests", "scripts/compat-programs.sh fetches Debian's source package haproxy"))
    varnishtest = lab.program("varnishtest", "Debian's package varnish has it")
    environment = {**os.environ, "HAPROXY_PROGRAM": lab.program("haproxy", "Debian's package haproxy has it"), "HAPROXY_ARGS": ""}
    tests = sorted(str(path.relative_to(place)) for path in place.glob("reg-tests/**/*.vtc"))
    lab.suite(tests, lambda test: lab.passes(varnishtest, "-b", 2 << 20, "-t", 15, test, cwd=place, env=environment), at_once=6)
    with lab.check("most pass"):
        expect(sum(lab.result["suite"].values()) > len(tests) * 0.9, True, "at least nine of ten")


script("haproxy's own tests", main)
