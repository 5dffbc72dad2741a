"""Java's DatagramChannel with a selector, and DatagramSocket: 5000 datagrams there and back each, connected and not, a time limit, a
port where nobody is"""

from lib import expect, script

PROGRAM = """
import java.net.*;
import java.nio.*;
import java.nio.channels.*;

public class Datagrams {
    static final InetSocketAddress AT = new InetSocketAddress("127.0.0.1", 8740);

    static void serve() {
        try (Selector selector = Selector.open(); DatagramChannel channel = DatagramChannel.open()) {
            channel.bind(AT).configureBlocking(false).register(selector, SelectionKey.OP_READ);
            ByteBuffer buffer = ByteBuffer.allocateDirect(2000);
            while (true) {
                selector.select();
                selector.selectedKeys().clear();
                for (SocketAddress from; (from = channel.receive(buffer.clear())) != null;)
                    channel.send(buffer.flip(), from);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    static int channel(boolean connected) throws Exception {
        try (DatagramChannel channel = DatagramChannel.open()) {
            if (connected) channel.connect(AT);
            ByteBuffer out = ByteBuffer.allocate(8), in = ByteBuffer.allocate(2000);
            for (int n = 0; n < 5000; n++) {
                out.clear().putLong(0, n);
                if (connected) channel.write(out); else channel.send(out, AT);
                if (connected) channel.read(in.clear()); else channel.receive(in.clear());
                if (in.flip().remaining() != 8 || in.getLong() != n) return n;
            }
            return 5000;
        }
    }

    static int socket() throws Exception {
        try (DatagramSocket socket = new DatagramSocket()) {
            socket.setSoTimeout(10_000);
            byte[] in = new byte[100];
            for (int n = 0; n < 5000; n++) {
                byte[] out = ("datagram " + n).getBytes();
                socket.send(new DatagramPacket(out, out.length, AT));
                DatagramPacket packet = new DatagramPacket(in, in.length);
                socket.receive(packet);
                if (!new String(in, 0, packet.getLength()).equals("datagram " + n)) return n;
            }
            return 5000;
        }
    }

    static String late() throws Exception {
        try (DatagramSocket socket = new DatagramSocket(0, InetAddress.getLoopbackAddress())) {
            socket.setSoTimeout(50);
            socket.receive(new DatagramPacket(new byte[1], 1));
            return "came";
        } catch (SocketTimeoutException error) {
            return "late";
        }
    }

    static String nobody() throws Exception {
        try (DatagramChannel channel = DatagramChannel.open()) {
            channel.connect(new InetSocketAddress("127.0.0.1", 8741));
            channel.write(ByteBuffer.allocate(1));
            channel.read(ByteBuffer.allocate(1));
            return "came";
        } catch (PortUnreachableException error) {
            return "nobody";
        }
    }

    public static void main(String[] args) throws Exception {
        Thread server = new Thread(Datagrams::serve);
        server.setDaemon(true);
        server.start();
        Thread.sleep(300);
        System.out.println(channel(false) + " " + channel(true) + " " + socket() + " " + late() + " " + nobody());
    }
}
"""


def main(lab):
    lab.version("java", "-version")
    program = lab.write("Datagrams.java", PROGRAM)
    with lab.check("datagrams there and back"):
        found = lab.run("java", "-Xshare:auto", program, timeout=120).decode().split()
        expect(found, ["5000", "5000", "5000", "late", "nobody"], "what came")


script("Java's datagrams", main)
