"""HTTPS by records of the socket's: Python's OpenSSL does the handshake in memory, its key log gives the secrets, and from then on the connection
is plain calls on a socket with keys (linux/tls.h).

    tls_server.py PORT FILE CONNECTIONS

GET sends FILE by sendfile, PUT answers with the SHA-256 of what came. Prints a line a connection: what was agreed, and how it ended.
"""
import hashlib
import hmac
import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile

SOL_TLS, TLS_TX, TLS_RX, TCP_ULP = 282, 1, 2, 31
CIPHERS = {
    "TLS_AES_128_GCM_SHA256": (51, 16, "sha256"),
    "TLS_AES_256_GCM_SHA384": (52, 32, "sha384"),
    "TLS_CHACHA20_POLY1305_SHA256": (54, 32, "sha256"),
    "ECDHE-ECDSA-AES128-GCM-SHA256": (51, 16, "sha256"),
    "ECDHE-ECDSA-AES256-GCM-SHA384": (52, 32, "sha384"),
    "ECDHE-ECDSA-CHACHA20-POLY1305": (54, 32, "sha256"),
}


def expand_label(secret, label, length, digest):
    """RFC 8446 section 7.1; no key is longer than a hash."""
    label = b"tls13 " + label
    info = struct.pack(">HB", length, len(label)) + label + b"\0"
    return hmac.new(secret, info + b"\1", digest).digest()[:length]


def prf(secret, seed, length, digest):
    """RFC 5246 section 5."""
    out, a = b"", seed
    while len(out) < length:
        a = hmac.new(secret, a, digest).digest()
        out += hmac.new(secret, a + seed, digest).digest()
    return out[:length]


def info(version, cipher, key, iv, number):
    if cipher == 54:
        return struct.pack("=HH", version, cipher) + iv + key + struct.pack(">Q", number)
    # The last eight octets of TLS 1.2's nonce are the sender's choice.
    return struct.pack("=HH", version, cipher) + (iv[4:] or b"\0" * 8) + key + iv[:4] + struct.pack(">Q", number)


class Handshake:
    """In memory: what the peer sends goes in, and the other way round."""

    def __init__(self, context, connection):
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.into, self.out, server_side=True)
        self.randoms = []
        sent = b""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sent = self.flush(connection, sent)
                self.into.write(self.record(connection))
        self.flush(connection, sent)
        assert self.into.pending == 0

    def record(self, connection):
        """One record and no octet of the next, which may be for the keys."""
        head = connection.recv(5, socket.MSG_WAITALL)
        body = connection.recv(struct.unpack(">H", head[3:])[0], socket.MSG_WAITALL)
        if body[0] == 1 and not self.randoms:
            self.randoms.append(body[6:38])
        return head + body

    def flush(self, connection, sent):
        octets = self.out.read()
        if not sent and octets:
            self.randoms.append(octets[11:43])
        connection.sendall(octets)
        return sent + octets


def keys(tls, handshake, log):
    """The socket's structures: for what the server sends, and for what it receives."""
    name, version, _ = tls.cipher()
    cipher, key_len, digest = CIPHERS[name]
    secrets = {line.split()[0]: bytes.fromhex(line.split()[2]) for line in open(log) if line[0] != "#"}
    if tls.version() == "TLSv1.3":
        both = []
        for side in ("SERVER", "CLIENT"):
            secret = secrets[side + "_TRAFFIC_SECRET_0"]
            key = expand_label(secret, b"key", key_len, digest)
            both.append(info(0x304, cipher, key, expand_label(secret, b"iv", 12, digest), 0))
        return both
    client, server = handshake.randoms[:2]
    iv_len = 12 if cipher == 54 else 4
    block = prf(secrets["CLIENT_RANDOM"], b"key expansion" + server + client, 2 * (key_len + iv_len), digest)
    client_key, server_key = block[:key_len], block[key_len : 2 * key_len]
    ivs = block[2 * key_len :]
    # Finished was record 0 of either side.
    return [info(0x303, cipher, server_key, ivs[iv_len:], 1), info(0x303, cipher, client_key, ivs[:iv_len], 1)]


def serve(connection, path):
    """One request. Returns the type of the record that ends it."""
    asked = b""
    while b"\r\n\r\n" not in asked:
        asked += connection.recv(65536)
    head, body = asked.split(b"\r\n\r\n", 1)
    if head.startswith(b"PUT"):
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        if b"100-continue" in head.lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        digest, left = hashlib.sha256(body), length - len(body)
        while left:
            octets = connection.recv(min(left, 300000))
            assert octets, "the end in the middle"
            digest.update(octets)
            left -= len(octets)
        answer = digest.hexdigest().encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
    else:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, socket.MSG_MORE)
            at = 0
            while at < size:
                at += os.sendfile(connection.fileno(), file.fileno(), at, size - at)
    octets, control, _, _ = connection.recvmsg(99, socket.CMSG_SPACE(1))
    return [(octets[-1], data[0]) for level, _, data in control if level == SOL_TLS]


def main():
    port, path, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    work = tempfile.mkdtemp(dir=os.path.dirname(path))
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run(made + ["-keyout", work + "/key", "-out", work + "/cert"], check=True, stderr=subprocess.DEVNULL)
    listener = socket.create_server(("", port))
    print("listening", flush=True)
    for number in range(count):
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(work + "/cert", work + "/key")
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.keylog_filename = log = f"{work}/keys{number}"
        handshake = Handshake(context, connection)
        sends, receives = keys(handshake.tls, handshake, log)
        connection.setsockopt(SOL_TLS, TLS_TX, sends)
        connection.setsockopt(SOL_TLS, TLS_RX, receives)
        ended = serve(connection, path)
        print(handshake.tls.version(), handshake.tls.cipher()[0], *ended, flush=True)
        connection.close()


main()
