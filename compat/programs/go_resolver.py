"""Go's resolver through cgo (the C library's getaddrinfo) and dnsmasq: 300 names one after the other, 50 at once, a name that is not there"""

import os
import pathlib
import subprocess

from lib import Missing, expect, script, until

PROGRAM = """
package main

import (
    "fmt"
    "net"
    "os"
    "strings"
    "sync"
)

func address(n int) string { return fmt.Sprintf("10.3.%d.%d", n>>8, n&255) }

func ask(n int) bool {
    found, err := net.LookupHost(fmt.Sprintf("h%d.test", n))
    return err == nil && len(found) == 1 && found[0] == address(n)
}

func main() {
    good := 0
    for n := 0; n < 300; n++ {
        if ask(n) {
            good++
        }
    }
    var wait sync.WaitGroup
    var lock sync.Mutex
    together := 0
    for n := 0; n < 50; n++ {
        wait.Add(1)
        go func() {
            defer wait.Done()
            if ask(n) {
                lock.Lock()
                together++
                lock.Unlock()
            }
        }()
    }
    wait.Wait()
    _, err := net.LookupHost("none.test")
    fmt.Println(good, together, err != nil && strings.Contains(err.Error(), "no such host"))
    os.Exit(0)
}
"""


def main(lab):
    go = os.environ.get("COMPAT_GO", "/usr/local/go/bin/go")
    if not pathlib.Path(go).exists():
        raise Missing("no Go here")
    lab.version(go, "version")
    lab.write("resolver/main.go", PROGRAM)
    lab.write("resolver/go.mod", "module resolver\n\ngo 1.22\n")
    lab.run(go, "build", "-o", lab.path("resolve"), ".", cwd=lab.path("resolver"), timeout=150,
            env={**os.environ, "CGO_ENABLED": "1", "GOFLAGS": "-mod=mod", "GOCACHE": str(lab.path("cache"))})
    hosts = lab.write("hosts", "".join(f"10.3.{n >> 8}.{n & 255} h{n}.test\n" for n in range(300)))
    conf = lab.write("resolv.conf", "nameserver 127.0.0.1\noptions timeout:5\n")
    # The namespaces of this run have mounts of their own.
    subprocess.run(["mount", "--bind", conf, "/etc/resolv.conf"], check=True)
    lab.serve("dnsmasq", 53, lab.program("dnsmasq", "Debian's package dnsmasq-base has it"), "--keep-in-foreground",
              "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--log-facility=-", f"--pid-file={lab.path('pid')}",
              "--user=root", "--listen-address=127.0.0.1", "--bind-interfaces", f"--addn-hosts={hosts}", "--local=/test/")
    until("it answers", lambda: lab.passes("dig", "@127.0.0.1", "+time=1", "+tries=1", "h0.test"))
    with lab.check("names"):
        found = lab.run(lab.path("resolve"), timeout=60, env={**os.environ, "GODEBUG": "netdns=cgo"}).decode().split()
        expect(found, ["300", "50", "true"], "answers")


script("Go's resolver", main)
