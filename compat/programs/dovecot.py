"""IMAP: thirty sessions at a time that log in, append, search and fetch messages up to 3 MB; its processes execute each other
with environments of their own and pass connections on"""

import imaplib
import os
import threading

from lib import Failed, connect, expect, octets, script

PORT = 8570

CONFIG = """
base_dir = {dir}/run
state_dir = {dir}/run
log_path = {dir}/log
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
default_process_limit = 200
mail_location = maildir:{dir}/mail/%u
service imap-login {{
  inet_listener imap {{
    port = 8570
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
passdb {{
  driver = static
  args = password=secret
}}
userdb {{
  driver = static
  args = uid=65534 gid=65534 home={dir}/mail/%u
}}
"""


def session(user, size):
    with imaplib.IMAP4("127.0.0.1", PORT, timeout=30) as imap:
        imap.login(user, "secret")
        imap.select()
        message = b"Subject: %s\r\n\r\n%s\r\n" % (user.encode(), octets(size // 2, size).hex().encode())
        expect(imap.append("INBOX", None, None, message)[0], "OK", "append")
        imap.select()
        expect(imap.search(None, "SUBJECT", user), ("OK", [b"1"]), "search")
        expect(imap.fetch("1", "(RFC822)")[1][0][1], message, "the message")


def main(lab):
    dovecot = lab.program("dovecot", "Debian's package dovecot-imapd has it")
    lab.version(dovecot, "--version")
    for name in ("run", "mail"):
        lab.path(name).mkdir()
    os.chown(lab.path("mail"), 65534, 65534)
    server = lab.spawn("server", dovecot, "-F", "-c", lab.write("dovecot.conf", CONFIG.format(dir=lab.dir)))
    connect(PORT, process=server).close()
    with lab.check("a session, and 3 MB"):
        session("one", 1000)
        session("two", 3_000_000)
    with lab.check("thirty sessions at a time"):
        errors = []

        def work(number):
            try:
                session(f"user{number}", 10_000 + number)
            except Exception as error:  # pylint: disable=broad-except
                errors.append(f"{number}: {error}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise Failed(f"{len(errors)} sessions: {errors[0]}")
    with lab.check("ends by itself"):
        lab.stop(server, status=0)


script("Dovecot", main)
