"""gen_tcp: an echo with 100 clients at a time in one node, 10 MB to a client outside, passive and active sockets"""

import socket

from lib import connect, expect, octets, recv_exactly, script

PORT = 8540

SERVER = """
-module(echo).
-export([main/0]).
main() ->
    {ok, Listener} = gen_tcp:listen(8540, [binary, {active, false}, {reuseaddr, true}, {ip, {127,0,0,1}}, {backlog, 200}]),
    Self = self(),
    spawn(fun() -> accept(Listener) end),
    [spawn(fun() -> Self ! client(N) end) || N <- lists:seq(1, 100)],
    [receive ok -> ok after 20000 -> exit(late) end || _ <- lists:seq(1, 100)],
    io:format("same~n"),
    receive stop -> ok end.
accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Pid = spawn(fun() -> receive go -> inet:setopts(Socket, [{active, once}]), echo(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go,
    accept(Listener).
echo(Socket) ->
    receive
        {tcp, Socket, Data} -> ok = gen_tcp:send(Socket, Data), inet:setopts(Socket, [{active, once}]), echo(Socket);
        {tcp_closed, Socket} -> ok
    end.
client(N) ->
    {ok, Socket} = gen_tcp:connect({127,0,0,1}, 8540, [binary, {active, false}]),
    Data = binary:copy(<<N>>, 20000),
    ok = gen_tcp:send(Socket, Data),
    {ok, Data} = gen_tcp:recv(Socket, 20000, 10000),
    gen_tcp:close(Socket).
"""


def main(lab):
    erl = lab.program("erl", "Debian's package erlang-base has it")
    lab.version(erl, "-noshell", "-eval", 'io:format("~s.0~n", [erlang:system_info(otp_release)]), halt().')
    lab.write("echo.erl", SERVER)
    lab.run(lab.program("erlc", "Debian's package erlang-base has it"), "echo.erl", cwd=lab.dir)
    server = lab.spawn("server", erl, "-noshell", "-s", "echo", "main", cwd=lab.dir)
    with lab.check("a hundred clients at a time"):
        lab.until_log("server", "same", 30)
    with lab.check("10 MB through the echo"):
        content = octets(10_000_000, 2)
        s = connect(PORT, process=server)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(content), 100_000):
            s.sendall(content[start:start + 100_000])
            expect(recv_exactly(s, 100_000), content[start:start + 100_000], "what came back")
        s.close()
    lab.stop(server)


script("Erlang/OTP", main)
