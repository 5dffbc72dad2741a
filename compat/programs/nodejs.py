"""http server and client: keep-alive, 50 MB streamed up and down, 200 requests at a time; the cluster module with
two workers (handles passed, and shared), net with half close, TLS"""

import socket

from httpload import Load
from lib import connect, expect, octets, recv_to_end, script, sha256, until

PORT, CLUSTER_PORT, TLS_PORT, NET_PORT = 8500, 8501, 8502, 8503

SERVER = """
const http = require('http'), https = require('https'), net = require('net');
const crypto = require('crypto'), fs = require('fs');
const [,, dir, cert, key] = process.argv;
const small = fs.readFileSync(dir + '/small');
function handle(request, response) {
    if (request.method === 'PUT') {
        const hash = crypto.createHash('sha256');
        request.on('data', piece => hash.update(piece));
        request.on('end', () => response.end(hash.digest('hex')));
    } else if (request.url === '/large') {
        response.writeHead(200, {'Content-Length': fs.statSync(dir + '/large').size});
        fs.createReadStream(dir + '/large').pipe(response);
    } else if (request.url === '/chunked') {
        fs.createReadStream(dir + '/large').pipe(response);
    } else {
        response.writeHead(200, {'Content-Length': small.length});
        response.end(small);
    }
}
const options = {cert: fs.readFileSync(cert), key: fs.readFileSync(key)};
const echo = net.createServer({allowHalfOpen: true}, socket => socket.pipe(socket));
const servers = [http.createServer(handle).listen(8500, '127.0.0.1'),
                 https.createServer(options, handle).listen(8502, '127.0.0.1'), echo.listen(8503, '127.0.0.1')];
process.on('SIGTERM', () => servers.forEach(server => {
    server.close();
    if (server.closeAllConnections) server.closeAllConnections();
}));
"""

CLIENT = """
const http = require('http'), crypto = require('crypto'), fs = require('fs');
const dir = process.argv[2], sum = data => crypto.createHash('sha256').update(data).digest('hex');
const small = sum(fs.readFileSync(dir + '/small')), large = sum(fs.readFileSync(dir + '/large'));
const agent = new http.Agent({keepAlive: true, maxSockets: 20});
function get(path) {
    return new Promise((resolve, reject) => http.get({port: 8500, host: '127.0.0.1', path, agent}, response => {
        const hash = crypto.createHash('sha256');
        response.on('data', piece => hash.update(piece)).on('error', reject);
        response.on('end', () => resolve(hash.digest('hex')));
    }).on('error', reject));
}
function put(path) {
    return new Promise((resolve, reject) => {
        const request = http.request({port: 8500, host: '127.0.0.1', path, method: 'PUT', agent}, response => {
            let text = '';
            response.on('data', piece => text += piece).on('end', () => resolve(text));
        }).on('error', reject);
        fs.createReadStream(dir + '/large').pipe(request);
    });
}
(async () => {
    const want = (found, wanted, what) => { if (found !== wanted) throw new Error(what + ' differs'); };
    for (let round = 0; round < 10; round++) {
        const all = Array.from({length: 200}, () => get('/small'));
        for (const found of await Promise.all(all)) want(found, small, 'small');
    }
    want(await get('/large'), large, 'large');
    want(await get('/chunked'), large, 'chunked');
    want(await put('/put'), large, 'put');
    for (const found of await Promise.all([get('/large'), get('/chunked'), put('/put')])) want(found, large, 'at once');
    agent.destroy();
    console.log('same');
})().catch(error => { console.error(error); process.exit(1); });
"""

CLUSTER = """
const cluster = require('cluster'), http = require('http'), fs = require('fs');
cluster.schedulingPolicy = process.argv[3] === 'shared' ? cluster.SCHED_NONE : cluster.SCHED_RR;
if (cluster.isPrimary) {
    let stopping = false;
    for (let n = 0; n < 2; n++) cluster.fork();
    cluster.on('exit', () => { if (!stopping) cluster.fork(); });
    process.on('SIGTERM', () => { stopping = true; cluster.disconnect(() => process.exit(0)); });
} else {
    const small = fs.readFileSync(process.argv[2] + '/small');
    http.createServer((request, response) => {
        if (request.url === '/die') process.exit(1);
        response.end(request.url === '/pid' ? String(process.pid) : small);
    }).listen(8501, '127.0.0.1');
}
"""


def main(lab, node="node"):
    lab.version(node, "--version")
    small, large = octets(300), octets(50_000_000, 2)
    lab.write("small", small)
    lab.write("large", large)
    cert, key = lab.certificate()
    server = lab.serve("server", PORT, node, lab.write("server.js", SERVER), lab.dir, cert, key)
    with lab.check("its own client: keep-alive, 200 at a time, 50 MB up and down"):
        expect(lab.run(node, lab.write("client.js", CLIENT), lab.dir), b"same\n", "what it said")
    with lab.check("curl: 50 MB up and down"):
        expect(sha256(lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/large")), sha256(large), "large")
        expect(sha256(lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/chunked")), sha256(large), "chunked")
        found = lab.run("curl", "-sSf", "-T", lab.path("large"), f"http://127.0.0.1:{PORT}/put").decode()
        expect(found, sha256(large), "what arrived")
    with lab.check("keep-alive load"), Load(PORT, "/small", small) as load:
        load.more(2000)
    with lab.check("TLS"):
        expect(sha256(lab.run("curl", "-sSf", "--cacert", cert, f"https://127.0.0.1:{TLS_PORT}/large")), sha256(large),
               "large")
    with lab.check("net: an echo with half close"):
        s = connect(NET_PORT)
        s.sendall(octets(100_000, 3))
        s.shutdown(socket.SHUT_WR)
        expect(sha256(recv_to_end(s)), sha256(octets(100_000, 3)), "what came back")
        s.close()
    with lab.check("ends by itself when its servers close"):
        lab.stop(server, status=0)
    # Round robin: the primary accepts and passes connections; shared: the workers accept from one listener.
    for policy in ("round robin", "shared"):
        with lab.check(f"cluster of two workers, {policy}"):
            cluster(lab, node, policy, small)


def cluster(lab, node, policy, small):
    name = f"cluster-{policy.replace(' ', '-')}"
    primary = lab.serve(name, CLUSTER_PORT, node, lab.write("cluster.js", CLUSTER), lab.dir, policy)
    here = f"http://127.0.0.1:{CLUSTER_PORT}"
    seen = set()
    until("both workers have answered", lambda: seen.add(lab.run("curl", "-sSf", f"{here}/pid")) or len(seen) == 2)
    with Load(CLUSTER_PORT, "/small", small) as load:
        load.more(1000)
    with Load(CLUSTER_PORT, "/small", small, keepalive=False) as load:
        load.more(500)
    lab.run("curl", "-sS", f"{here}/die", status=52)
    until("a new worker has answered",
          lambda: lab.run("curl", "-sSf", "--retry", "5", "--retry-connrefused", f"{here}/pid") not in seen)
    lab.stop(primary, status=0)


if __name__ == "__main__":
    script("Node.js", main)
