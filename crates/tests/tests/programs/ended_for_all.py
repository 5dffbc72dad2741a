"""A listener that two processes have, and one shuts down: at once nobody gets in, and whatever listens there next is who is connected to."""
import os
import select
import socket

ROUNDS = 50


def child(body):
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    return pid


def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"


def waits(serving, ready):
    """As the other one of a pair of processes: its wait ends, too."""
    os.write(ready, b"x")
    poll = select.poll()
    poll.register(serving, 0)
    assert poll.poll(20_000) == [(serving.fileno(), select.POLLHUP)], "the wait ends"
    try:
        serving.accept()
        raise AssertionError("it was shut down")
    except OSError as error:
        assert error.errno == 22, error


def refused(address):
    try:
        socket.create_connection(address, timeout=20)
        raise AssertionError("nobody listens")
    except ConnectionRefusedError:
        pass


def served(serving, address):
    """The other process does not accept."""
    with socket.create_connection(address, timeout=20) as sock:
        assert select.select([serving], [], [], 20)[0], "it waits where one listens"
        conn, _ = serving.accept()
        with conn:
            conn.sendall(b"served")
        assert sock.recv(10) == b"served"


for again_at_once in range(2):
    for _ in range(ROUNDS):
        serving = socket.socket()
        serving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        serving.bind(("127.0.0.1", 0))
        address = serving.getsockname()
        serving.close()
        serving = socket.create_server(address, backlog=16)
        is_ready, ready = os.pipe()
        held, hold = os.pipe()
        pid = child(lambda: os.read(held, 1) if again_at_once else waits(serving, ready))
        if not again_at_once:
            os.read(is_ready, 1)
        with socket.create_connection(address, timeout=20) as waiting:
            serving.shutdown(socket.SHUT_RD)
            if not again_at_once:
                refused(address)
            try:
                assert not waiting.recv(1), "it was not accepted"
            except ConnectionResetError:
                pass
        if not again_at_once:
            ended(pid)
        serving.listen(16)
        served(serving, address)
        served(serving, address)
        serving.close()
        if again_at_once:
            os.write(hold, b"x")
            ended(pid)
        for end in (is_ready, ready, held, hold):
            os.close(end)
print("same")
