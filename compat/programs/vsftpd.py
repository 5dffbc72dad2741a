"""passive and active transfers of 20 MB both ways by lftp and ftplib, listings, resume, rename and delete, five
clients at a time, TLS on both connections"""

import ftplib
import io
import shutil
import ssl
import threading

from lib import Failed, expect, octets, script, sha256, sha256_file

PORT = 2121

CONF = """
listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
anonymous_enable=YES
no_anon_password=YES
anon_root={root}
anon_upload_enable=YES
anon_mkdir_write_enable=YES
anon_other_write_enable=YES
anon_umask=022
write_enable=YES
ftp_username=www-data
chown_uploads=NO
secure_chroot_dir={empty}
xferlog_enable=NO
port_enable=YES
pasv_min_port=21000
pasv_max_port=21100
connect_from_port_20=NO
seccomp_sandbox=NO
isolate_network=NO
ssl_enable=YES
allow_anon_ssl=YES
rsa_cert_file={cert}
rsa_private_key_file={key}
require_ssl_reuse=NO
ssl_tlsv1=YES
"""


def login(kind=ftplib.FTP, passive=True, **options):
    client = kind(timeout=15, **options)
    client.connect("127.0.0.1", PORT)
    client.login()
    client.set_pasv(passive)
    return client


def fetch(client, name, **options):
    found = bytearray()
    client.retrbinary(f"RETR {name}", found.extend, **options)
    return bytes(found)


def both_ways(client, content, name):
    client.storbinary(f"STOR store/{name}", io.BytesIO(content))
    expect(client.size(f"store/{name}"), len(content), "its size")
    expect(sha256(fetch(client, f"store/{name}")), sha256(content), "what came back")


def main(lab):
    lab.version("dpkg-query", "-W", "vsftpd")
    root, empty, store = lab.path("root"), lab.path("empty"), lab.path("root/store")
    empty.mkdir()
    root.mkdir(exist_ok=True)
    store.mkdir()
    shutil.chown(store, "www-data")
    content = octets(20_000_000)
    lab.write("root/large", content)
    lab.write("source", content)
    cert, key = lab.certificate()
    conf = lab.write("vsftpd.conf", CONF.format(port=PORT, root=root, empty=empty, cert=cert, key=key))
    conf.chmod(0o600)
    server = lab.serve("vsftpd", PORT, "vsftpd", conf)
    with lab.check("passive: up and down"):
        client = login()
        both_ways(client, content, "passive")
        client.quit()
    with lab.check("active: up and down"):
        client = login(passive=False)
        both_ways(client, content, "active")
        client.quit()
    with lab.check("listings, resume, rename, delete"):
        client = login()
        for n in range(50):
            client.storbinary(f"STOR store/small{n}", io.BytesIO(octets(n * 10, n)))
        expect(len([name for name in client.nlst("store") if "small" in name]), 50, "names in the listing")
        expect(sha256(fetch(client, "large", rest=7_000_000)), sha256(content[7_000_000:]), "the rest of a file")
        client.rename("store/small7", "store/renamed")
        expect(fetch(client, "store/renamed"), octets(70, 7), "the renamed file")
        client.delete("store/renamed")
        try:
            client.size("store/renamed")
            raise Failed("a deleted file has a size")
        except ftplib.error_perm:
            client.quit()
    for name, passive in (("passive", "yes"), ("active", "no")):
        with lab.check(f"lftp, {name}"):
            commands = (f"set ftp:passive-mode {passive}; set ftp:ssl-allow no; "
                        "set net:max-retries 2; set net:timeout 10; "
                        f"get large -o {lab.path(f'lftp-{name}')}; put {lab.path('source')} -o store/lftp-{name}; "
                        f"mirror -P3 store {lab.path(f'mirror-{name}')}; bye")
            lab.run("lftp", "-c", f"open ftp://127.0.0.1:{PORT}; {commands}")
            expect(sha256_file(lab.path(f"lftp-{name}")), sha256(content), "what came down")
            expect(sha256_file(store / f"lftp-{name}"), sha256(content), "what went up")
            expect(sorted(path.name for path in lab.path(f"mirror-{name}").iterdir()),
                   sorted(path.name for path in store.iterdir()), "the mirror")
    with lab.check("TLS on both connections"):
        context = ssl.create_default_context(cafile=cert)
        context.check_hostname = False
        client = login(ftplib.FTP_TLS, context=context)
        client.prot_p()
        both_ways(client, content[:2_000_000], "tls")
        client.quit()
    with lab.check("five clients at a time"):
        five(content)
    with lab.check("ends cleanly"):
        lab.stop(server)


def five(content):
    failures = []

    def work(number):
        try:
            client = login(passive=bool(number % 2))
            for turn in range(3):
                both_ways(client, content[:3_000_000 + number], f"client{number}-{turn}")
            client.quit()
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if failures:
        raise Failed("; ".join(failures))


script("vsftpd", main)
