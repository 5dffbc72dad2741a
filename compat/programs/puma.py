"""puma with two workers of four threads that accept from their parent's listener: keep-alive load, 10 MB up and down, a phased
restart (USR1) and a restart by exec with the listener inherited (USR2), each with load after it"""

import signal

from httpload import Load
from lib import children_of, expect, octets, script, sha256, until

PORT = 8610

APP = """
require 'digest'
small = File.binread(ENV['LAB'] + '/small')
large = File.binread(ENV['LAB'] + '/large')
run lambda { |env|
  body = if env['REQUEST_METHOD'] == 'PUT' then Digest::SHA256.hexdigest(env['rack.input'].read)
         elsif env['PATH_INFO'] == '/large' then large
         elsif env['PATH_INFO'] == '/pid' then Process.pid.to_s
         else small end
  [200, {'Content-Type' => 'application/octet-stream', 'Content-Length' => body.bytesize.to_s}, [body]]
}
"""

CONF = """
bind 'tcp://127.0.0.1:8610'
workers 2
threads 4, 4
environment 'production'
raise_exception_on_sigterm false
rackup '{dir}/app.ru'
directory '{dir}'
pidfile '{dir}/pid'
"""


def main(lab):
    puma = lab.program("puma", "Debian's package puma has it")
    lab.version(puma, "--version")
    small, large = octets(300), octets(10_000_000, 2)
    for name, content in (("small", small), ("large", large), ("app.ru", APP), ("conf.rb", CONF.format(dir=lab.dir))):
        lab.write(name, content)
    here = f"http://127.0.0.1:{PORT}"
    server = lab.serve("server", PORT, "env", f"LAB={lab.dir}", puma, "-C", lab.path("conf.rb"))
    with lab.check("10 MB up and down"):
        expect(sha256(lab.run("curl", "-sSf", f"{here}/large")), sha256(large), "large")
        found = lab.run("curl", "-sSf", "-T", lab.path("large"), f"{here}/put").decode()
        expect(found, sha256(large), "what arrived")
    with lab.check("load, keep-alive and not"):
        for keepalive in (True, False):
            with Load(PORT, "/small", small, keepalive=keepalive) as load:
                load.more(500)
    # Both drop a request now and then when there is load, on every stack.
    for name, number in (("a phased restart", signal.SIGUSR1), ("a restart by exec", signal.SIGUSR2)):
        with lab.check(f"{name}, and load after it"):
            restart(server, number)
            with Load(PORT, "/small", small, keepalive=False) as load:
                load.more(300)
    with lab.check("ends by itself"):
        lab.stop(server, status=0)


def restart(server, number):
    before = children_of(server.pid)
    server.send_signal(number)
    until("two new workers and no old one",
          lambda: len(now := children_of(server.pid)) == 2 and not set(now) & set(before), 30)


script("puma", main)
