/* What test programs that try one case after another have in common: what is told of a failure names the case, and connections are to a
 * listener of their own. */
#ifndef CASES_H
#define CASES_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The case, and where the listener is. */
static const char *now = "?";
static struct sockaddr_in place;
static int listener;

#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			printf("%s: line %d: %s (%s)\n", now, __LINE__, #what, strerror(errno));                       \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Begins to listen, at `place`. */
static void listen_there(int backlog)
{
	const int yes = 1;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
	MUST(bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, backlog) == 0);
}

/* The same at a port of the loopback address, which the program was given. */
__attribute__((unused)) static void listen_at_port(const char *port)
{
	place = (struct sockaddr_in){AF_INET, htons(atoi(port)), {htonl(INADDR_LOOPBACK)}, {0}};
	listen_there(16);
}

/* Both ends of a connection. */
__attribute__((unused)) static void join(int ends[2])
{
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	MUST(connect(ends[0], (struct sockaddr *)&place, sizeof place) == 0);
	ends[1] = accept(listener, NULL, NULL);
	MUST(ends[1] >= 0);
}

/* Until the thread of that number sleeps in the kernel, or has ended: nothing else tells that a call waits. */
__attribute__((unused)) static void until_asleep(pid_t thread)
{
	for (int quiet = 0; quiet < 20;) {
		char path[64], text[512] = "";
		snprintf(path, sizeof path, "/proc/%d/stat", thread);
		int file = open(path, O_RDONLY);
		if (file < 0)
			return;
		ssize_t n = read(file, text, sizeof text - 1);
		close(file);
		char *state = n > 0 ? strrchr(text, ')') : NULL;
		quiet = state && state[2] == 'S' ? quiet + 1 : 0;
		usleep(200);
	}
}

#endif
