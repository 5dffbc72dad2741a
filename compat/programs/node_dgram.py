"""Node's dgram: 5000 datagrams to a server that sends each back, one at a time and 20 at a time; connected sockets; an error of a
port where nobody is"""

from lib import expect, script

PROGRAM = """
const dgram = require('dgram');
const server = dgram.createSocket('udp4');
server.on('message', (text, from) => server.send(text, from.port, from.address));
function volley(count, atOnce, connected) {
    return new Promise((resolve, reject) => {
        const socket = dgram.createSocket('udp4');
        let sent = 0, came = 0;
        const next = () => {
            const text = Buffer.from('datagram ' + sent++);
            connected ? socket.send(text) : socket.send(text, 8730, '127.0.0.1');
        };
        socket.on('message', text => {
            if (!text.toString().startsWith('datagram ')) reject(new Error('came: ' + text));
            if (++came === count) { socket.close(); resolve(came); } else if (sent < count) next();
        });
        const begin = () => { for (let n = 0; n < atOnce; n++) next(); };
        socket.on('error', reject);
        connected ? socket.connect(8730, '127.0.0.1', begin) : socket.bind(0, '127.0.0.1', begin);
    });
}
function refused() {
    return new Promise(resolve => {
        const socket = dgram.createSocket('udp4');
        // Either the next call or the next look at the socket is told.
        let isTold = false;
        const told = error => {
            if (!error || isTold) return;
            isTold = true;
            socket.close();
            resolve(error.code);
        };
        socket.on('error', told);
        socket.connect(8731, '127.0.0.1', () => socket.send('x', () => setTimeout(() => isTold || socket.send('y', told), 50)));
    });
}
server.bind(8730, '127.0.0.1', async () => {
    try {
        console.log(await volley(5000, 1, false), await volley(5000, 20, false), await volley(5000, 1, true), await refused());
        server.close();
    } catch (error) { console.log('failed: ' + error); process.exit(1); }
});
"""


def main(lab):
    lab.version("node", "--version")
    program = lab.write("datagrams.js", PROGRAM)
    with lab.check("datagrams there and back"):
        expect(lab.run("node", program, timeout=60).decode().split(), ["5000", "5000", "5000", "ECONNREFUSED"], "what came")


script("Node's dgram", main)
