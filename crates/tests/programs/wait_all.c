/*
 * recv of MSG_WAITALL while bytes come slowly, ended by something else than bytes: `wait_all PORT`. What ends it is seen soon, however
 * steadily they come. Prints what it has tried, and "all" at the end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno));                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* Pieces until it is ended, and how many more may come until it is: a third of a second's, where it takes a few milliseconds. */
enum { PIECE = 1448, BEFORE = 200, SOON = 1000, TURNS = 5, LARGE = 64 << 20 };

static char bytes[LARGE], piece[PIECE];
static atomic_int is_over;

struct call {
	int socket;
	ssize_t got;
	int error;
};

static void *receive_all(void *of)
{
	struct call *call = of;
	call->got = recv(call->socket, bytes, LARGE, MSG_WAITALL);
	call->error = errno;
	is_over = 1;
	return NULL;
}

static void on_signal(int number) { (void)number; }

/* The pieces that went until the call was over, from when it was to end. */
static int until_over(int ends[2], pthread_t thread, int by_signal)
{
	int sent = 0, after = 0;
	for (; !is_over; sent++) {
		MUST(send(ends[0], piece, PIECE, 0) == PIECE);
		if (sent == BEFORE) {
			if (by_signal)
				MUST(pthread_kill(thread, SIGUSR1) == 0);
			else
				MUST(shutdown(ends[1], SHUT_RD) == 0);
		}
		after += sent > BEFORE;
		/* The wire: so often a piece comes. */
		usleep(300);
	}
	return after;
}

/* An urgent byte among others: a call that has some ends before it, also one that wants more. */
static void stops_before_what_is_urgent(struct sockaddr_in *place, int listener, int low_water)
{
	int ends[2] = {socket(AF_INET, SOCK_STREAM, 0)}, flags = low_water ? 0 : MSG_WAITALL, is_there = 0, want = 2 * PIECE;
	char urgent = '?';
	MUST(connect(ends[0], (struct sockaddr *)place, sizeof *place) == 0);
	MUST((ends[1] = accept(listener, NULL, NULL)) >= 0);
	if (low_water)
		MUST(setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &want, sizeof want) == 0);
	MUST(send(ends[0], piece, PIECE, 0) == PIECE && send(ends[0], "!", 1, MSG_OOB) == 1);
	MUST(send(ends[0], piece, PIECE, 0) == PIECE && shutdown(ends[0], SHUT_WR) == 0);
	/* All is there. */
	struct pollfd end = {.fd = ends[1], .events = POLLRDHUP};
	MUST(poll(&end, 1, -1) == 1);
	ssize_t before = recv(ends[1], bytes, 3 * PIECE, flags);
	MUST(ioctl(ends[1], SIOCATMARK, &is_there) == 0);
	ssize_t it = recv(ends[1], &urgent, 1, MSG_OOB), behind = recv(ends[1], bytes, 3 * PIECE, flags);
	printf("%zd, at the mark: %d, urgent %zd %c, behind %zd\n", before, is_there, it, urgent, behind);
	close(ends[0]);
	close(ends[1]);
}

int main(int argc, char **argv)
{
	struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct sigaction action = {.sa_handler = on_signal};
	MUST(argc == 2 && sigaction(SIGUSR1, &action, NULL) == 0);
	place.sin_port = htons((uint16_t)atoi(argv[1]));
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	MUST(bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 5) == 0);
	for (int turn = 0; turn < 2 * TURNS; turn++) {
		int ends[2] = {socket(AF_INET, SOCK_STREAM, 0)};
		MUST(connect(ends[0], (struct sockaddr *)&place, sizeof place) == 0);
		MUST((ends[1] = accept(listener, NULL, NULL)) >= 0);
		pthread_t thread;
		struct call call = {.socket = ends[1]};
		is_over = 0;
		MUST(pthread_create(&thread, NULL, receive_all, &call) == 0);
		int after = until_over(ends, thread, turn % 2);
		MUST(pthread_join(thread, NULL) == 0);
		MUST(call.got >= PIECE && call.got < LARGE);
		if (after > SOON) {
			printf("%s: %d pieces came before it was over\n", turn % 2 ? "a signal" : "a shutdown", after);
			return 1;
		}
		close(ends[0]);
		close(ends[1]);
	}
	puts("a shutdown and a signal end it soon");
	stops_before_what_is_urgent(&place, listener, 0);
	stops_before_what_is_urgent(&place, listener, 1);
	puts("all");
	return 0;
}
