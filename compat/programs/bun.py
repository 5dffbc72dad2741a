"""Bun.serve and fetch: files of 300 B and 10 MB, 200 requests at a time; it waits by system calls of its own, so it stays with
the kernel"""

from httpload import Load
from lib import expect, octets, script, sha256

PORT = 8510

SERVER = """
const small = await Bun.file(process.argv[2] + '/small').bytes(), large = Bun.file(process.argv[2] + '/large');
Bun.serve({port: 8510, hostname: '127.0.0.1', async fetch(request) {
    const path = new URL(request.url).pathname;
    if (request.method === 'PUT')
        return new Response(new Bun.CryptoHasher('sha256').update(await request.bytes()).digest('hex'));
    return new Response(path === '/large' ? large : small);
}});
"""

CLIENT = """
const small = await Bun.file(process.argv[2] + '/small').text();
for (let round = 0; round < 5; round++) {
    const all = Array.from({length: 200}, () => fetch('http://127.0.0.1:8510/small').then(answer => answer.text()));
    for (const found of await Promise.all(all)) if (found !== small) throw new Error('small differs');
}
console.log('same');
"""


def main(lab):
    bun = lab.program("bun", "scripts/compat-programs.sh fetches it from npm")
    lab.version(bun, "--version")
    small, large = b"0123456789" * 30, octets(10_000_000, 2)
    lab.write("small", small)
    lab.write("large", large)
    server = lab.serve("server", PORT, bun, lab.write("server.js", SERVER), lab.dir)
    with lab.check("its own client, 200 at a time"):
        expect(lab.run(bun, lab.write("client.js", CLIENT), lab.dir), b"same\n", "what it said")
    with lab.check("curl: 10 MB up and down"):
        expect(sha256(lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/large")), sha256(large), "large")
        found = lab.run("curl", "-sSf", "-T", lab.path("large"), f"http://127.0.0.1:{PORT}/put").decode()
        expect(found, sha256(large), "what arrived")
    with lab.check("keep-alive load"), Load(PORT, "/small", small) as load:
        load.more(1000)
    lab.stop(server)


script("Bun", main)
