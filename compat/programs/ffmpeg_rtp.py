"""ffmpeg sends a stream as RTP and another one takes it: to an address of this machine, and to a group (multicast)"""

import time

from lib import Failed, script

SOURCE = "Debian's package ffmpeg has it"


def stream(lab, name, address, port):
    """Half a minute of a picture that moves, at the speed that it has; what came is a video that can be read."""
    ffmpeg = lab.program("ffmpeg", SOURCE)
    description, out = lab.path(f"{name}.sdp"), lab.path(f"{name}.ts")
    quiet = [ffmpeg, "-hide_banner", "-loglevel", "error", "-nostdin", "-y"]
    words = ["-re", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-t", "6", "-c:v", "mpeg4", "-g", "10", "-f", "rtp",
             "-sdp_file", description, f"rtp://{address}:{port}?pkt_size=1200&ttl=0"]
    sender = lab.spawn(f"{name}-sender", *quiet, *words)
    for _ in range(250):
        if description.exists() and description.stat().st_size:
            break
        time.sleep(0.02)
    receiver = lab.spawn(f"{name}-receiver", *quiet, "-protocol_whitelist", "file,udp,rtp", "-i", description, "-t", "2",
                         "-c", "copy", "-f", "mpegts", out)
    if receiver.wait(30) != 0:
        raise Failed(f"the receiver ended with {receiver.returncode}: {lab.log(f'{name}-receiver')}")
    sender.wait(30)
    frames = lab.run(lab.program("ffprobe", SOURCE), "-v", "error", "-count_frames", "-select_streams", "v",
                     "-show_entries", "stream=nb_read_frames", "-of", "csv=p=0", out).decode()
    count = int(frames.split()[0].strip(","))
    if count < 30:
        raise Failed(f"{count} pictures instead of about 50")


def main(lab):
    lab.version(lab.program("ffmpeg", SOURCE), "-version")
    with lab.check("to an address"):
        stream(lab, "one", "127.0.0.1", 8750)
    with lab.check("to a group"):
        lab.run("ip", "route", "add", "239.0.0.0/8", "dev", "lo")
        lab.run("ip", "link", "set", "lo", "multicast", "on")
        stream(lab, "group", "239.1.2.3", 8752)


script("ffmpeg's RTP", main)
