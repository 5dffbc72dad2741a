"""php-fpm behind nginx, by TCP: three children that accept from their parent's listener, bodies of 5 MB up and down, kept and new
connections to it, a reload (USR2, by exec, with the listener inherited) under load, an orderly end"""

import glob
import os
import signal

from httpload import Load
from lib import Missing, connect, expect, octets, script, sha256, until

PORT, FPM_PORT = 8620, 8621

NGINX = """
daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ }}
http {{
    access_log off;
    client_max_body_size 20m;
    client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp; fastcgi_temp_path {dir}/tmp;
    uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
    upstream fpm {{ server 127.0.0.1:8621; keepalive 2; }}
    server {{
        listen 127.0.0.1:8620;
        location / {{
            include /etc/nginx/fastcgi_params;
            fastcgi_param SCRIPT_FILENAME {dir}/script.php;
            fastcgi_pass 127.0.0.1:8621;
        }}
        location /kept/ {{
            include /etc/nginx/fastcgi_params;
            fastcgi_param SCRIPT_FILENAME {dir}/script.php;
            fastcgi_keep_conn on;
            fastcgi_pass fpm;
        }}
    }}
}}
"""

FPM = """
[global]
error_log = {dir}/fpm.log
pid = {dir}/fpm.pid
daemonize = no
process_control_timeout = 10s
[www]
user = nobody
group = nogroup
listen = 127.0.0.1:8621
pm = static
pm.max_children = 3
"""

SCRIPT = """<?php
header('Content-Type: application/octet-stream');
if ($_SERVER['REQUEST_METHOD'] === 'PUT') echo hash('sha256', file_get_contents('php://input'));
elseif (str_ends_with($_SERVER['REQUEST_URI'], '/large')) readfile(__DIR__ . '/large');
elseif (str_ends_with($_SERVER['REQUEST_URI'], '/pid')) echo getmypid();
else readfile(__DIR__ . '/small');
"""


def main(lab):
    found = glob.glob("/usr/sbin/php-fpm*")
    if not found:
        raise Missing("no php-fpm here: Debian's package php-fpm has it")
    lab.version(found[0], "--version")
    small, large = octets(300), octets(5_000_000, 2)
    for name, content in (("small", small), ("large", large), ("script.php", SCRIPT)):
        lab.write(name, content)
    conf, fpm_conf = (lab.write(name, text.format(dir=lab.dir)) for name, text in (("nginx.conf", NGINX), ("fpm.conf", FPM)))
    fpm = lab.serve("fpm", FPM_PORT, found[0], "-y", fpm_conf, "-R")
    nginx = lab.serve("nginx", PORT, "nginx", "-c", conf, "-e", lab.path("error.log"))
    here = f"http://127.0.0.1:{PORT}"
    with lab.check("5 MB up and down"):
        for path in ("", "/kept"):
            expect(sha256(lab.run("curl", "-sSf", f"{here}{path}/large")), sha256(large), "large")
            expect(lab.run("curl", "-sSf", "-T", lab.path("large"), f"{here}{path}/put").decode(), sha256(large), "what arrived")
    for path in ("/small", "/kept/small"):
        with lab.check(f"load: {'kept' if 'kept' in path else 'new'} connections to php-fpm"), Load(PORT, path, small) as load:
            load.more(1000)
    with lab.check("more clients than children: who waits is served"):
        waiting = [connect(FPM_PORT) for _ in range(20)]
        for s in waiting:
            s.close()
        expect(sha256(lab.run("curl", "-sSf", f"{here}/large")), sha256(large), "large")
    with lab.check("a reload under load"):
        with Load(PORT, "/small", small) as load:
            old = lab.run("curl", "-sSf", f"{here}/pid")
            fpm.send_signal(signal.SIGUSR2)
            until("the old children have gone", lambda: not os.path.exists(f"/proc/{int(old)}"), 20)
            load.more(300)
    with lab.check("ends by itself"):
        fpm.send_signal(signal.SIGQUIT)
        expect(fpm.wait(10), 0, "exit status of php-fpm")
        lab.stop(nginx, status=0)


script("PHP fpm", main)
