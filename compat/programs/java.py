"""HttpServer and HttpClient of the JDK in single-file sources: keep-alive, 200 requests at a time, 50 MB up and
down; NIO channels with a selector, transferTo from a file, blocking sockets in 50 threads with time limits"""

from lib import connect, expect, octets, script, sha256

PORT = 8600

SERVER = """
import com.sun.net.httpserver.*;
import java.io.*;
import java.net.*;
import java.nio.file.*;
import java.security.*;
import java.util.*;
import java.util.concurrent.*;

public class Server {
    public static void main(String[] args) throws Exception {
        Path small = Path.of(args[0], "small"), large = Path.of(args[0], "large");
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 8600), 200);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/small", exchange -> file(exchange, small));
        server.createContext("/large", exchange -> file(exchange, large));
        server.createContext("/put", exchange -> {
            try (InputStream in = exchange.getRequestBody()) {
                MessageDigest digest = MessageDigest.getInstance("SHA-256");
                byte[] piece = new byte[65536];
                for (int n; (n = in.read(piece)) > 0;) digest.update(piece, 0, n);
                byte[] answer = HexFormat.of().formatHex(digest.digest()).getBytes();
                exchange.sendResponseHeaders(200, answer.length);
                exchange.getResponseBody().write(answer);
                exchange.close();
            } catch (NoSuchAlgorithmException error) {
                throw new IOException(error);
            }
        });
        server.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> server.stop(0)));
    }

    static void file(HttpExchange exchange, Path path) throws IOException {
        exchange.getRequestBody().readAllBytes();
        exchange.sendResponseHeaders(200, Files.size(path));
        try (OutputStream out = exchange.getResponseBody()) {
            Files.copy(path, out);
        }
    }
}
"""

CLIENT = """
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.nio.file.*;
import java.security.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Client {
    static byte[] small, large;

    public static void main(String[] args) throws Exception {
        small = Files.readAllBytes(Path.of(args[1], "small"));
        large = Files.readAllBytes(Path.of(args[1], "large"));
        switch (args[0]) {
            case "http" -> http();
            case "nio" -> nio(Path.of(args[1], "large"));
            case "threads" -> threads();
        }
        System.out.println("same");
        System.exit(0);
    }

    static void same(byte[] found, byte[] wanted) {
        if (!Arrays.equals(found, wanted)) throw new IllegalStateException(found.length + " other octets");
    }

    static void http() throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        URI base = URI.create("http://127.0.0.1:8600/");
        HttpRequest get = HttpRequest.newBuilder(base.resolve("small")).build();
        for (int n = 0; n < 300; n++) same(client.send(get, BodyHandlers.ofByteArray()).body(), small);
        List<CompletableFuture<HttpResponse<byte[]>>> all = IntStream.range(0, 200)
            .mapToObj(n -> client.sendAsync(get, BodyHandlers.ofByteArray())).toList();
        for (var one : all) same(one.get(20, TimeUnit.SECONDS).body(), small);
        HttpRequest big = HttpRequest.newBuilder(base.resolve("large")).build();
        same(client.send(big, BodyHandlers.ofByteArray()).body(), large);
        HttpRequest put = HttpRequest.newBuilder(base.resolve("put"))
            .PUT(HttpRequest.BodyPublishers.ofByteArray(large)).build();
        String sum = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(large));
        same(client.send(put, BodyHandlers.ofByteArray()).body(), sum.getBytes());
    }

    // One thread with a selector echoes; 20 channels send a file to it by transferTo and read it back.
    static void nio(Path file) throws Exception {
        ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 8601));
        Thread echo = new Thread(() -> {
            try {
                echo(listener);
            } catch (IOException error) {
                error.printStackTrace();
            }
        });
        echo.setDaemon(true);
        echo.start();
        ExecutorService pool = Executors.newFixedThreadPool(20);
        List<Future<?>> done = new ArrayList<>();
        for (int n = 0; n < 10; n++) done.add(pool.submit(() -> {
            SocketChannel channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", 8601));
            Future<?> sender = pool.submit(() -> {
                FileChannel source = FileChannel.open(file);
                for (long at = 0; at < 5_000_000;) at += source.transferTo(at, 5_000_000 - at, channel);
                return channel.shutdownOutput();
            });
            ByteBuffer found = ByteBuffer.allocate(5_000_001);
            while (channel.read(found) >= 0);
            sender.get(20, TimeUnit.SECONDS);
            same(Arrays.copyOf(found.array(), found.position()), Arrays.copyOf(large, 5_000_000));
            channel.close();
            return null;
        }));
        for (Future<?> one : done) one.get(30, TimeUnit.SECONDS);
    }

    static void echo(ServerSocketChannel listener) throws IOException {
        Selector selector = Selector.open();
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(65536));
                    continue;
                }
                SocketChannel channel = (SocketChannel) key.channel();
                ByteBuffer buffer = (ByteBuffer) key.attachment();
                boolean end = key.isReadable() && channel.read(buffer) < 0;
                buffer.flip();
                channel.write(buffer);
                boolean left = buffer.hasRemaining();
                buffer.compact();
                if (end && !left) {
                    channel.close();
                } else {
                    boolean more = buffer.hasRemaining() && !end;
                    key.interestOps((left ? SelectionKey.OP_WRITE : 0) | (more ? SelectionKey.OP_READ : 0));
                }
            }
        }
    }

    // Blocking sockets: an answer, a read that must run into its time limit, and a close by another thread.
    static void threads() throws Exception {
        ServerSocket listener = new ServerSocket(8602, 100, InetAddress.getByName("127.0.0.1"));
        ExecutorService pool = Executors.newCachedThreadPool();
        pool.submit(() -> {
            while (true) {
                Socket socket = listener.accept();
                pool.submit(() -> {
                    socket.getInputStream().transferTo(socket.getOutputStream());
                    socket.close();
                    return null;
                });
            }
        });
        List<Future<?>> done = new ArrayList<>();
        for (int n = 0; n < 50; n++) done.add(pool.submit(() -> {
            Socket socket = new Socket("127.0.0.1", 8602);
            for (int round = 0; round < 50; round++) {
                socket.getOutputStream().write(small);
                same(socket.getInputStream().readNBytes(small.length), small);
            }
            socket.setSoTimeout(200);
            try {
                socket.getInputStream().read();
                throw new IllegalStateException("no time-out");
            } catch (SocketTimeoutException expected) {
                socket.setSoTimeout(0);
            }
            Future<?> closer = pool.submit(() -> { Thread.sleep(100); socket.close(); return null; });
            try {
                socket.getInputStream().read();
                throw new IllegalStateException("a read of a closed socket returned");
            } catch (SocketException expected) {
                closer.get();
            }
            return null;
        }));
        for (Future<?> one : done) one.get(20, TimeUnit.SECONDS);
    }
}
"""


def main(lab):
    lab.version("java", "-version")
    small, large = octets(300), octets(50_000_000, 2)
    lab.write("small", small)
    lab.write("large", large)
    client = lab.write("Client.java", CLIENT)
    source = lab.write("Server.java", SERVER)
    # By default Java opens IPv6 sockets for IPv4 addresses too.
    for family, switches in (("IPv6 sockets", []), ("IPv4 sockets", ["-Djava.net.preferIPv4Stack=true"])):
        java = ["java", *switches]
        server = lab.spawn("server", *java, "-Dsun.net.httpserver.nodelay=true", source, lab.dir)
        connect(PORT, limit=30, process=server).close()
        with lab.check(f"{family}: HttpClient to HttpServer"):
            expect(lab.run(*java, client, "http", lab.dir), b"same\n", "what it said")
        with lab.check(f"{family}: curl to HttpServer"):
            for _ in range(3):
                found = lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/large")
                expect(sha256(found), sha256(large), "large")
            found = lab.run("curl", "-sSf", "-T", lab.path("large"), f"http://127.0.0.1:{PORT}/put").decode()
            expect(found, sha256(large), "what arrived")
        with lab.check(f"{family}: NIO, a selector and transferTo from a file"):
            expect(lab.run(*java, client, "nio", lab.dir), b"same\n", "what it said")
        with lab.check(f"{family}: 50 threads with blocking sockets, time limits, a close by another thread"):
            expect(lab.run(*java, client, "threads", lab.dir), b"same\n", "what it said")
        with lab.check(f"{family}: ends cleanly"):
            lab.stop(server, status=143)


script("Java", main)
