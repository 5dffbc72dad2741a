"""sshd with a host key of its own, login by key, 50 MB by scp and sftp both ways, a stream through ssh in both
directions, -L, -R and -D forwarding, a shared master connection, twenty sessions at a time"""

import os
import pwd
import shutil

from lib import Failed, connect, expect, is_served, octets, recv_exactly, script, sha256, sha256_file, until

PORT, ECHO, LEFT, RIGHT, SOCKS = 2222, 2230, 2231, 2232, 2233

SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {dir}/host_key
AuthorizedKeysFile {dir}/user_key.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile {dir}/sshd.pid
MaxStartups 100
MaxSessions 50
Subsystem sftp {sftp}
"""

SSH = """
Host there
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {dir}/user_key
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile {dir}/known_hosts
    LogLevel ERROR
    ExitOnForwardFailure yes
"""


def main(lab):
    lab.version("ssh", "-V")
    lab.dir.chmod(0o755)
    for name in ("host_key", "user_key"):
        lab.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", lab.path(name))
    sftp = "/usr/lib/openssh/sftp-server"
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    sshd = lab.write("sshd_config", SSHD.format(port=PORT, dir=lab.dir, sftp=sftp))
    user = pwd.getpwuid(os.getuid()).pw_name
    config = lab.write("ssh_config", SSH.format(port=PORT, dir=lab.dir, user=user))
    ssh = ("ssh", "-F", config)
    content = octets(50_000_000)
    wanted = sha256(content)
    lab.write("source", content)

    with lab.check("login by key and a command"):
        # sshd executes itself for each connection and therefore wants its full path.
        server = lab.serve("sshd", PORT, shutil.which("sshd"), "-D", "-e", "-f", sshd)
        expect(lab.run(*ssh, "there", "echo $SSH_CONNECTION; exit 7", status=7).split()[3], b"2222", "its port")
    with lab.check("50 MB by scp both ways"):
        lab.run("scp", "-q", "-F", config, lab.path("source"), f"there:{lab.path('scp-there')}")
        expect(sha256_file(lab.path("scp-there")), wanted, "what arrived")
        lab.run("scp", "-q", "-F", config, f"there:{lab.path('scp-there')}", lab.path("scp-back"))
        expect(sha256_file(lab.path("scp-back")), wanted, "what came back")
    with lab.check("50 MB by sftp both ways"):
        there, back = lab.path("sftp-there"), lab.path("sftp-back")
        batch = f"put {lab.path('source')} {there}\nget {there} {back}\n"
        lab.run("sftp", "-q", "-F", config, "-b", "-", "there", input=batch.encode())
        expect(sha256_file(lab.path("sftp-there")), wanted, "what arrived")
        expect(sha256_file(lab.path("sftp-back")), wanted, "what came back")
    with lab.check("50 MB through cat, both ways at once"):
        expect(sha256(lab.run(*ssh, "there", "cat", input=content)), wanted, "what came back")
    with lab.check("twenty sessions at a time"):
        sessions = [lab.spawn(f"session-{n}", *ssh, "there", f"echo {n}; head -c 1000000 /dev/zero | sha256sum")
                    for n in range(20)]
        expect([session.wait(30) for session in sessions], [0] * 20, "exit status")
        zeros = sha256(bytes(1_000_000))
        for n in range(20):
            expect(lab.log(f"session-{n}"), f"{n} | {zeros}  -", "what a session said")
    echo = lab.serve("echo", ECHO, "socat", f"TCP-LISTEN:{ECHO},bind=127.0.0.1,reuseaddr,fork", "EXEC:cat")
    for option, port in (("-L", LEFT), ("-R", RIGHT)):
        what = f"127.0.0.1:{port}:127.0.0.1:{ECHO}"
        with lab.check(f"port forwarding {option}"):
            tunnel = lab.serve(f"tunnel{option}", port, *ssh, "-N", option, what, "there")
            echoes(port)
            lab.stop(tunnel)
    with lab.check("port forwarding -D"):
        tunnel = lab.serve("tunnel-D", SOCKS, *ssh, "-N", "-D", f"127.0.0.1:{SOCKS}", "there")
        answer = lab.run("curl", "-sS", "--http0.9", "--socks5", f"127.0.0.1:{SOCKS}", "-d", "hello", "-m", "2",
                         f"http://127.0.0.1:{ECHO}/", status=28)
        expect(answer.split(b"\r\n")[0], b"POST / HTTP/1.1", "what came back")
        lab.stop(tunnel)
    with lab.check("a shared master connection"):
        control = ("-o", f"ControlPath={lab.path('master')}")
        master = lab.spawn("master", *ssh, *control, "-M", "-N", "there")
        until("its socket", lab.path("master").exists)
        for n in range(10):
            expect(lab.run(*ssh, *control, "there", f"echo {n}"), f"{n}\n".encode(), "what a session said")
        lab.run(*ssh, *control, "-O", "exit", "there")
        master.wait(10)
    with lab.check("ends cleanly"):
        lab.stop(echo)
        lab.stop(server)
        if is_served(PORT):
            raise Failed("its port is still served")


def echoes(port):
    """Several connections through one tunnel, each with its own octets."""
    clients = [connect(port) for _ in range(5)]
    for n, client in enumerate(clients):
        content = octets(60_000, n)
        client.sendall(content)
        expect(sha256(recv_exactly(client, len(content))), sha256(content), "what came back")
    for client in clients:
        client.close()


script("OpenSSH", main)
