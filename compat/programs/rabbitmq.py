"""RabbitMQ (on Erlang) and pika: its nodes find each other by epmd and TCP (rabbitmqctl), 2,000 messages confirmed one by one and read by
three consumers, one of 5 MB, a consumer that dies with messages unacknowledged, 40 connections, an orderly end"""

import os

from lib import connect, expect, script

PORT = 8720

CLIENT = """
import hashlib, os, random, sys, threading
import pika

PORT = int(sys.argv[1])

def channel():
    parameters = pika.ConnectionParameters('127.0.0.1', PORT, blocked_connection_timeout=20, socket_timeout=20)
    return pika.BlockingConnection(parameters).channel()

def messages():
    here = channel()
    here.confirm_delivery()
    here.queue_declare('work')
    seen, lock = set(), threading.Lock()
    def consume():
        own = channel()
        own.basic_qos(prefetch_count=20)
        for method, _, body in own.consume('work', inactivity_timeout=5):
            if method is None:
                return
            own.basic_ack(method.delivery_tag)
            with lock:
                seen.add(body)
                if len(seen) == 2000:
                    return
    threads = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(2000):
        here.basic_publish('', 'work', b'%d' % n)
    for thread in threads:
        thread.join(30)
    assert seen == {b'%d' % n for n in range(2000)}, len(seen)

def large():
    here = channel()
    here.queue_declare('large')
    body = random.Random(1).randbytes(5_000_000)
    here.basic_publish('', 'large', body)
    for _, _, found in here.consume('large', auto_ack=True, inactivity_timeout=20):
        assert hashlib.sha256(found).digest() == hashlib.sha256(body).digest()
        return

def dies():
    here = channel()
    here.queue_declare('again')
    for n in range(10):
        here.basic_publish('', 'again', b'%d' % n)
    child = os.fork()
    if child == 0:
        own = channel()
        for count, _ in enumerate(own.consume('again')):
            if count == 9:
                os._exit(0)
    os.waitpid(child, 0)
    found = []
    for method, _, body in here.consume('again', auto_ack=True, inactivity_timeout=20):
        assert method is not None and method.redelivered
        found.append(body)
        if len(found) == 10:
            break
    assert sorted(found) == sorted(b'%d' % n for n in range(10)), found

def many():
    channels = [channel() for _ in range(40)]
    for n, own in enumerate(channels):
        own.queue_declare(f'many{n}', exclusive=True)
        own.basic_publish('', f'many{n}', b'%d' % n)
    for n, own in enumerate(channels):
        for _, _, body in own.consume(f'many{n}', auto_ack=True, inactivity_timeout=20):
            assert body == b'%d' % n
            break
        own.connection.close()

globals()[sys.argv[2]]()
print('same')
"""


def main(lab):
    server = lab.program("/usr/lib/rabbitmq/bin/rabbitmq-server", "Debian's package rabbitmq-server has it")
    # By its name in the environment that has pika.
    python = os.readlink(lab.program("python-pika", "scripts/compat-programs.sh fetches pika from PyPI"))
    ctl = "/usr/lib/rabbitmq/bin/rabbitmqctl"
    environment = {
        **os.environ, "HOME": str(lab.dir), "RABBITMQ_NODENAME": "compat@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(PORT), "RABBITMQ_MNESIA_BASE": str(lab.path("mnesia")), "RABBITMQ_LOG_BASE": str(lab.path("logs")),
        "RABBITMQ_PID_FILE": str(lab.path("rabbit.pid")), "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(lab.write("plugins", "[].\n")), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2",
    }
    node = lab.spawn("server", server, env=environment)
    with lab.check("starts, and rabbitmqctl reaches it"):
        connect(PORT, limit=60, process=node).close()
        lab.run(ctl, "-q", "await_startup", env=environment, timeout=60)
    client = lab.write("client.py", CLIENT)
    names = {"messages": "2,000 messages, three consumers", "large": "5 MB", "dies": "a consumer dies", "many": "40 connections"}
    for name, what in names.items():
        with lab.check(what):
            expect(lab.run(python, client, PORT, name, timeout=60), b"same\n", "what it said")
    with lab.check("an orderly end"):
        lab.run(ctl, "-q", "stop", env=environment, timeout=60)
        expect(node.wait(30), 0, "exit status of the server")


script("RabbitMQ", main)
