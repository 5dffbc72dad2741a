"""mosquitto and its clients: 20 subscribers who all get 200 messages, QoS 0, 1 and 2, a message of 5 MB, retained messages, a session
kept while its client is away, the last will of a client that is killed, TLS, many clients that come and go"""

import signal

from lib import expect, octets, script, sha256

PORT, PORT_TLS = 8650, 8651

CONF = """
listener 8650 127.0.0.1
allow_anonymous true
listener 8651 127.0.0.1
certfile {cert}
keyfile {key}
max_queued_messages 10000
user root
"""


class Broker:
    def __init__(self, lab):
        self.lab = lab
        cert, key = lab.certificate()
        self.cert = cert
        conf = lab.write("mosquitto.conf", CONF.format(cert=cert, key=key))
        self.process = lab.serve("mosquitto", PORT, lab.program("mosquitto", "Debian's package mosquitto has it"), "-v", "-c", conf)

    def where(self, port=PORT):
        return ("-h", "127.0.0.1", "-p", str(port)) + (("--cafile", str(self.cert)) if port == PORT_TLS else ())

    def publish(self, topic, *options, port=PORT, **more):
        self.lab.run("mosquitto_pub", *self.where(port), "-t", topic, *options, **more)

    def subscribe(self, name, topic, *options, port=PORT):
        """A subscriber in the background, once the broker has it."""
        client = self.lab.spawn(name, "mosquitto_sub", *self.where(port), "-i", name, "-t", topic, *options)
        self.lab.until_log("mosquitto", f"SUBACK to {name}\n")
        return client

    def got(self, name):
        return self.lab.path(f"{name}.log").read_bytes()


def main(lab):
    lab.version("mosquitto", "-h")
    broker = Broker(lab)
    lines = b"".join(b"message %d\n" % n for n in range(200))
    for qos in ("0", "1", "2"):
        with lab.check(f"20 subscribers, QoS {qos}"):
            clients = {f"sub{qos}-{n}": None for n in range(20)}
            for name in clients:
                clients[name] = broker.subscribe(name, f"news/{qos}/#", "-q", qos, "-C", "200")
            broker.publish(f"news/{qos}/one", "-q", qos, "-l", input=lines)
            for name, client in clients.items():
                expect(client.wait(10), 0, f"status of {name}")
                expect(broker.got(name), lines, f"what {name} got")
    for port, name in ((PORT, "plain"), (PORT_TLS, "TLS")):
        with lab.check(f"5 MB, {name}"):
            large = octets(5_000_000, 2)
            client = broker.subscribe(f"large-{name}", f"large/{name}", "-C", "1", "-N", port=port)
            broker.publish(f"large/{name}", "-f", lab.write("large", large), "-q", "1", port=port)
            expect(client.wait(10), 0, "status of the subscriber")
            expect(sha256(broker.got(f"large-{name}")), sha256(large), "what it got")
    with lab.check("a retained message"):
        broker.publish("kept", "-r", "-m", "for later", "-q", "1")
        expect(lab.run("mosquitto_sub", *broker.where(), "-t", "kept", "-C", "1"), b"for later\n", "what came")
    with lab.check("a session waits for its client"):
        away = ("-t", "session", "-q", "1", "-i", "away", "-c")
        lab.run("mosquitto_sub", *broker.where(), *away, "-E")
        broker.publish("session", "-q", "1", "-l", input=lines)
        expect(lab.run("mosquitto_sub", *broker.where(), *away, "-C", "200"), lines, "what came")
    with lab.check("the last will of a client that is killed"):
        witness = broker.subscribe("witness", "will", "-C", "1")
        client = broker.subscribe("mortal", "nothing", "--will-topic", "will", "--will-payload", "gone")
        client.send_signal(signal.SIGKILL)
        expect(witness.wait(10), 0, "status of the witness")
        expect(broker.got("witness"), b"gone\n", "what it got")
    with lab.check("100 clients come and go"):
        client = broker.subscribe("counter", "count", "-C", "100", "-q", "1")
        many = [lab.spawn("many", "mosquitto_pub", *broker.where(), "-t", "count", "-m", "one", "-q", "1") for _ in range(100)]
        expect([one.wait(20) for one in many], [0] * 100, "status of the clients")
        expect(client.wait(10), 0, "status of the one that counts")
        expect(broker.got("counter"), b"one\n" * 100, "what it counted")
    with lab.check("ends by itself"):
        lab.stop(broker.process, status=0)


script("mosquitto", main)
