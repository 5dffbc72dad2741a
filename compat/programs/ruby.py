"""WEBrick with files of 300 B and 10 MB (IO.copy_stream), keep-alive load, Net::HTTP in 20 threads"""

from httpload import Load
from lib import expect, octets, script, sha256

PORT = 8550

SERVER = """
require 'webrick'
server = WEBrick::HTTPServer.new(Port: 8550, BindAddress: '127.0.0.1', DocumentRoot: ARGV[0] + '/files',
                                 Logger: WEBrick::Log.new(File::NULL), AccessLog: [])
trap('TERM') { server.shutdown }
server.start
"""

CLIENT = """
require 'net/http'
small = File.binread(ARGV[0] + '/files/small')
threads = 20.times.map do
  Thread.new { 20.times { raise 'small differs' if Net::HTTP.get(URI('http://127.0.0.1:8550/small')) != small } }
end
threads.each(&:join)
puts 'same'
"""


def main(lab):
    ruby = lab.program("ruby", "Debian's packages ruby and ruby-webrick have it")
    lab.version(ruby, "--version")
    small, large = octets(300), octets(10_000_000, 2)
    lab.write("files/small", small)
    lab.write("files/large", large)
    server = lab.serve("server", PORT, ruby, lab.write("server.rb", SERVER), lab.dir)
    with lab.check("10 MB"):
        expect(sha256(lab.run("curl", "-sSf", f"http://127.0.0.1:{PORT}/large")), sha256(large), "large")
    with lab.check("keep-alive load"), Load(PORT, "/small", small) as load:
        load.more(500)
    with lab.check("Net::HTTP in 20 threads"):
        expect(lab.run(ruby, lab.write("client.rb", CLIENT), lab.dir), b"same\n", "what it said")
    with lab.check("ends by itself"):
        lab.stop(server, status=0)


script("Ruby", main)
