"""php -S with files of 300 B and 10 MB and a script; ext/curl, which PHP loads with RTLD_DEEPBIND, as the client; streams"""

from httpload import Load
from lib import expect, octets, script, sha256

PORT = 8560

CLIENT = """<?php
$curl = curl_init('http://127.0.0.1:8560/large');
curl_setopt_array($curl, [CURLOPT_RETURNTRANSFER => true, CURLOPT_TIMEOUT => 20]);
echo hash('sha256', curl_exec($curl)), ' ', hash('sha256', file_get_contents('http://127.0.0.1:8560/large'));
"""


def main(lab):
    php = lab.program("php", "Debian's packages php-cli and php-curl have it")
    lab.version(php, "--version")
    small, large = octets(300), octets(10_000_000, 2)
    lab.write("files/small", small)
    lab.write("files/large", large)
    lab.write("files/script.php", "<?php echo strrev($_GET['text']);")
    server = lab.serve("server", PORT, php, "-S", f"127.0.0.1:{PORT}", "-t", lab.path("files"))
    here = f"http://127.0.0.1:{PORT}"
    with lab.check("a script, and 10 MB"):
        expect(lab.run("curl", "-sSf", f"{here}/script.php?text=abc"), b"cba", "what it said")
        expect(sha256(lab.run("curl", "-sSf", f"{here}/large")), sha256(large), "large")
    with lab.check("a new connection for each request"), Load(PORT, "/small", small, keepalive=False) as load:
        load.more(300)
    with lab.check("ext/curl and streams"):
        found = lab.run(php, lab.write("client.php", CLIENT)).decode().split()
        expect(found, [sha256(large)] * 2, "what they got")
    lab.stop(server)


script("PHP", main)
