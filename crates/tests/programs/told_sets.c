/*
 * What an epoll set tells of sets in it while those are closed, armed for one event, or hold both a socket and a pipe: `told_sets PORT`.
 * Prints what each wait has told, and "all" at the end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno));                                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { ADD = EPOLL_CTL_ADD, MOD = EPOLL_CTL_MOD, DEL = EPOLL_CTL_DEL };
enum { IN = EPOLLIN, EDGE = EPOLLIN | EPOLLET, ONCE = EPOLLIN | EPOLLONESHOT, EDGE_ONCE = EDGE | EPOLLONESHOT };

static struct sockaddr_in place;
static int listener;

struct ends {
	int near, far;
};

static struct ends join(void)
{
	struct ends ends;
	ends.near = socket(AF_INET, SOCK_STREAM, 0);
	MUST(connect(ends.near, (struct sockaddr *)&place, sizeof place) == 0);
	ends.far = accept(listener, NULL, NULL);
	MUST(ends.far >= 0);
	return ends;
}

/* One byte comes to the near end. */
static void say(struct ends ends)
{
	char room[64];
	ssize_t before = recv(ends.near, room, sizeof room, MSG_PEEK | MSG_DONTWAIT);
	MUST(send(ends.far, "x", 1, 0) == 1);
	while (recv(ends.near, room, sizeof room, MSG_PEEK | MSG_DONTWAIT) <= before)
		poll(&(struct pollfd){.fd = ends.near, .events = POLLIN}, 1, -1);
}

static void hear(struct ends ends)
{
	char room[64];
	MUST(recv(ends.near, room, sizeof room, 0) > 0);
}

static int set(void)
{
	int made = epoll_create1(EPOLL_CLOEXEC);
	MUST(made >= 0);
	return made;
}

static void control(int set, int op, int fd, unsigned events)
{
	struct epoll_event event = {.events = events, .data.u64 = fd};
	MUST(epoll_ctl(set, op, fd, &event) == 0);
}

/* What a set tells of now, twice. */
static void told(const char *what, int set)
{
	struct epoll_event events[4];
	struct pollfd polled = {.fd = set, .events = POLLIN};
	int ready = poll(&polled, 1, 0);
	int first = epoll_wait(set, events, 4, 0);
	printf("\t%s: polled %d, told %d", what, ready, first);
	for (int n = 0; n < first; n++)
		printf(" (%x)", events[n].events);
	printf(", then %d\n", epoll_wait(set, events, 4, 0));
}

/* Three sets deep, edge-triggered: one of the innermost ones, of which has been told, is closed. */
static void closed_within(int is_heard, int by_del)
{
	struct ends a = join(), b = join();
	int outer = set(), middle = set(), of_a = set(), of_b = set();
	printf("a set within is %s, %s\n", by_del ? "taken out" : "closed", is_heard ? "read" : "readable");
	control(of_a, ADD, a.near, IN);
	control(of_b, ADD, b.near, IN);
	control(middle, ADD, of_a, IN);
	control(middle, ADD, of_b, IN);
	control(outer, ADD, middle, EDGE);
	say(a);
	told("an event", outer);
	if (is_heard)
		hear(a);
	else
		say(b);
	if (!is_heard)
		told("another one", outer);
	if (by_del)
		control(middle, DEL, of_a, 0);
	close(of_a);
	told("closed", outer);
	say(b);
	told("an event in the other one", outer);
	told("the middle one", middle);
	hear(b);
	told("read", outer);
	close(outer), close(middle), close(of_b);
	close(a.near), close(a.far), close(b.near), close(b.far);
}

/* The number by which a set was registered is closed, while the set has another one, and is another set's then. */
static void number_again(unsigned events)
{
	struct ends a = join(), b = join();
	int outer = set(), inner = set(), copy = dup(inner);
	printf("a number again, %x\n", events);
	control(inner, ADD, a.near, IN);
	control(outer, ADD, inner, events);
	close(inner);
	say(a);
	told("by a number that is closed", outer);
	hear(a);
	int other = set();
	MUST(other == inner);
	control(other, ADD, b.near, IN);
	control(outer, ADD, other, events);
	say(a);
	told("another set has it, an event in the first", outer);
	say(b);
	told("an event in the second", outer);
	control(outer, MOD, other, events);
	told("the second anew", outer);
	control(outer, DEL, other, 0);
	told("the second taken out", outer);
	hear(a);
	say(a);
	told("an event in the first", outer);
	close(copy);
	told("the first is gone", outer);
	close(outer), close(other);
	close(a.near), close(a.far), close(b.near), close(b.far);
}

/* A one-shot registration by a number that is closed, or has become another descriptor, fires once. */
static void once_by_lost_number(unsigned events, int is_reused, int room)
{
	struct ends a = join();
	int outer = set(), inner = set(), copy = dup(inner), lines[2];
	struct epoll_event told_of[4];
	printf("one-shot by a number that is closed, %x, %d, room for %d\n", events, is_reused, room);
	MUST(pipe2(lines, O_CLOEXEC) == 0);
	control(inner, ADD, a.near, IN);
	control(outer, ADD, inner, events);
	close(inner);
	int other = is_reused ? dup(lines[0]) : -1;
	if (is_reused) {
		MUST(other == inner);
		control(outer, ADD, other, ONCE);
	}
	say(a);
	told("fires", outer);
	control(copy, ADD, lines[0], IN);
	MUST(write(lines[1], "x", 1) == 1);
	for (int n = 0; n < 3; n++)
		printf("\ttold %d\n", epoll_wait(outer, told_of, room, 0));
	close(other);
	MUST(dup2(copy, inner) == inner);
	control(outer, MOD, inner, events);
	told("armed anew", outer);
	control(outer, DEL, inner, 0);
	told("taken out", outer);
	close(outer), close(inner), close(copy), close(lines[0]), close(lines[1]);
	close(a.near), close(a.far);
}

/* What the middle set would not tell of is no edge for the outer one. */
static void not_asked_for(unsigned events)
{
	struct ends a = join(), b = join();
	int outer = set(), middle = set(), quiet = set();
	printf("not asked for: %x\n", events);
	control(quiet, ADD, a.near, EDGE);
	control(middle, ADD, b.near, IN);
	control(middle, ADD, quiet, events);
	control(outer, ADD, middle, EDGE);
	say(b);
	told("an event", outer);
	if (events & EPOLLONESHOT) {
		say(a);
		told("it is disarmed by this", middle);
		told("and the outer one", outer);
	}
	say(a);
	told("nobody asks for it", outer);
	control(middle, MOD, quiet, IN);
	told("now one does", outer);
	say(a);
	told("for the next one, too", outer);
	close(outer), close(middle), close(quiet);
	close(a.near), close(a.far), close(b.near), close(b.far);
}

/* An edge by a socket, which is gone when the outer set is asked, while a pipe beside it is readable. */
static void beside_a_pipe(unsigned events, int has_pipe)
{
	struct ends a = join();
	int outer = set(), inner = set(), lines[2];
	printf("beside a pipe: %x, %d\n", events, has_pipe);
	MUST(pipe2(lines, O_CLOEXEC) == 0);
	control(inner, ADD, a.near, IN);
	control(inner, ADD, lines[0], IN);
	control(outer, ADD, inner, events);
	if (has_pipe)
		MUST(write(lines[1], "x", 1) == 1);
	told("the pipe", outer);
	say(a);
	hear(a);
	told("a socket, read already", outer);
	told("the inner one", inner);
	say(a);
	told("a socket", outer);
	hear(a);
	control(inner, MOD, a.near, IN | EPOLLOUT);
	told("it is asked for more", outer);
	close(outer), close(inner), close(lines[0]), close(lines[1]);
	close(a.near), close(a.far);
}

int main(int count, char **arguments)
{
	MUST(count == 2);
	/* Nothing here may hang. */
	alarm(50);
	setvbuf(stdout, NULL, _IOLBF, 0);
	int on = 1;
	place = (struct sockaddr_in){AF_INET, htons(atoi(arguments[1])), {htonl(INADDR_LOOPBACK)}, {0}};
	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	MUST(bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 16) == 0);
	for (int kind = 0; kind < 4; kind++)
		closed_within(kind & 1, kind & 2);
	number_again(IN);
	number_again(EDGE);
	for (int kind = 0; kind < 8; kind++)
		once_by_lost_number(kind & 1 ? EDGE_ONCE : ONCE, kind & 2, kind & 4 ? 1 : 4);
	not_asked_for(0);
	not_asked_for(EPOLLOUT);
	not_asked_for(ONCE);
	for (int kind = 0; kind < 4; kind++)
		beside_a_pipe(kind & 1 ? EDGE : IN, kind & 2);
	puts("all");
	return 0;
}
