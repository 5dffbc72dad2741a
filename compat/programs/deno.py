"""Deno.serve and fetch: files of 300 B and 10 MB, 200 requests at a time"""

from httpload import Load
from lib import expect, octets, script, sha256

PORT = 8520

SERVER = """
const small = await Deno.readFile(Deno.args[0] + '/small');
Deno.serve({port: 8520, hostname: '127.0.0.1'}, async request => {
    if (new URL(request.url).pathname !== '/large') return new Response(small);
    return new Response((await Deno.open(Deno.args[0] + '/large')).readable);
});
"""

CLIENT = """
const small = await Deno.readTextFile(Deno.args[0] + '/small');
for (let round = 0; round < 5; round++) {
    const all = Array.from({length: 200}, () => fetch('http://127.0.0.1:8520/small').then(answer => answer.text()));
    for (const found of await Promise.all(all)) if (found !== small) throw new Error('small differs');
}
console.log('same');
"""


def main(lab):
    deno = lab.program("deno", "scripts/compat-programs.sh fetches it from npm")
    lab.version(deno, "--version")
    small, large = b"0123456789" * 30, octets(10_000_000, 2)
    lab.write("small", small)
    lab.write("large", large)
    server = lab.serve("server", PORT, deno, "run", "-A", lab.write("server.js", SERVER), lab.dir)
    with lab.check("its own client, 200 at a time"):
        expect(lab.run(deno, "run", "-A", lab.write("client.js", CLIENT), lab.dir), b"same\n", "what it said")
    with lab.check("curl: 10 MB"):
        expect(sha256(lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/large")), sha256(large), "large")
    with lab.check("keep-alive load"), Load(PORT, "/small", small) as load:
        load.more(1000)
    lab.stop(server)


script("Deno", main)
