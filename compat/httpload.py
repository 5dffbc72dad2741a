"""A hard HTTP load in which every answer is compared: threads with keep-alive connections, and wrk with a script."""

import http.client
import json
import re
import shutil
import ssl
import threading

from lib import Failed, sha256, until

BROKEN = (http.client.RemoteDisconnected, ConnectionError)


class Load:
    """Threads that fetch one path again and again while the `with` block runs.

    A server may close a connection between two requests (RFC 9110, 9.2.2 and RFC 9112, 9.3.1): a request that meets
    this on a connection used before is sent again on a new one, as every client does. On a new connection it is a
    failure, and so is an answer that is cut off or different.
    """

    def __init__(self, port, path, content, threads=6, keepalive=True, tls=False, host="127.0.0.1"):
        self.where = (host, port)
        self.path, self.wanted = path, sha256(content)
        self.keepalive, self.tls = keepalive, tls
        self.done, self.reopened, self.failures = 0, 0, []
        self.ending = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        self.more(len(self.threads))
        return self

    def __exit__(self, kind, error, trace):
        self.ending.set()
        for thread in self.threads:
            thread.join(30)
        if kind is None:
            if any(thread.is_alive() for thread in self.threads):
                raise Failed(f"a request hangs after {self.done} good ones")
            if self.failures:
                raise Failed(f"{len(self.failures)} of {self.done + len(self.failures)} requests failed: "
                             f"{'; '.join(sorted(set(self.failures))[:4])}")

    def more(self, count, limit=20):
        """Waits until that many further requests are answered."""
        goal = self.done + count
        until(f"{count} more requests answered ({self.failures[:3]})",
              lambda: self.done + len(self.failures) >= goal, limit)

    def open(self):
        if self.tls:
            context = ssl._create_unverified_context()  # pylint: disable=protected-access
            return http.client.HTTPSConnection(*self.where, timeout=20, context=context)
        return http.client.HTTPConnection(*self.where, timeout=20)

    def fetch(self, connection):
        connection.request("GET", self.path, headers={} if self.keepalive else {"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise Failed(f"status {answer.status}")
        if sha256(body) != self.wanted:
            raise Failed(f"{len(body)} octets that are not the expected ones")

    def work(self):
        connection, used = self.open(), False
        while not self.ending.is_set():
            try:
                self.fetch(connection)
            except BROKEN as error:
                connection.close()
                if used and self.keepalive:
                    with self.lock:
                        self.reopened += 1
                else:
                    self.fail(error)
                connection, used = self.open(), False
                continue
            except Exception as error:  # pylint: disable=broad-except
                self.fail(error)
                connection.close()
                connection, used = self.open(), False
                continue
            with self.lock:
                self.done += 1
            used = connection.sock is not None
        connection.close()

    def fail(self, error):
        with self.lock:
            self.failures.append(f"{type(error).__name__}: {error}")


WRK_SCRIPT = """
local wanted = io.open(%s, "rb"):read("*a")
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() good, bad = 0, 0 end
function response(status, headers, body)
    if status == 200 and body == wanted then good = good + 1 else bad = bad + 1 end
end
function done(summary)
    local good, bad = 0, 0
    for _, thread in ipairs(threads) do good, bad = good + thread:get("good"), bad + thread:get("bad") end
    local e = summary.errors
    print(string.format("compared good=%%d bad=%%d errors=%%d", good, bad, e.connect + e.read + e.write + e.timeout))
end
"""


def wrk(lab, url, file, seconds=2, connections=64):
    """wrk(1) with every body compared to the file's content; gives the number of good answers."""
    if not shutil.which("wrk"):
        raise Failed("wrk is not installed")
    script = lab.write("wrk.lua", WRK_SCRIPT % json.dumps(str(file)))
    output = lab.run("wrk", "-t2", f"-c{connections}", f"-d{seconds}s", "-s", script, url).decode()
    found = re.search(r"good=(\d+) bad=(\d+) errors=(\d+)", output)
    if not found:
        raise Failed(f"wrk said: {output}")
    good, bad, errors = map(int, found.groups())
    if bad or errors or not good:
        raise Failed(f"wrk: {good} good answers, {bad} bad ones, {errors} socket errors")
    return good
