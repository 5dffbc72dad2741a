/*
 * Calls that are under way when another thread closes their descriptors, and gives the numbers to other things: `held_calls PORT`. As with
 * Linux, a call has what it found: it goes on with that to its end. Prints what it has tried, and "all" at the end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"

enum { PIECE = 1 << 20, LARGE = 8 << 20, ROUNDS = 40 };

static char bytes[PIECE];

static int file_of(char byte, size_t length)
{
	int file = memfd_create("held", MFD_CLOEXEC);
	MUST(file >= 0);
	memset(bytes, byte, sizeof bytes);
	for (size_t at = 0; at < length; at += sizeof bytes)
		MUST(pwrite(file, bytes, sizeof bytes, at) == sizeof bytes);
	return file;
}

/* What came at the other end, of each byte. */
struct drain {
	int fd;
	_Atomic long came;
	long of[256];
};

static void *drain(void *of)
{
	static _Thread_local unsigned char room[1 << 16];
	struct drain *drain = of;
	for (ssize_t n; (n = recv(drain->fd, room, sizeof room, 0)) > 0; drain->came += n)
		for (ssize_t at = 0; at < n; at++)
			drain->of[room[at]]++;
	return NULL;
}

enum { SEND, SENDMMSG, SENDFILE, SENDFILE_HERE, RECEIVE, SPLICE_IN, SPLICE_OUT };

struct call {
	int fd, kind, file;
	size_t length;
	_Atomic pid_t thread;
	ssize_t result;
	int error;
};

static void *make(void *of)
{
	struct call *call = of;
	off_t from = 0;
	call->thread = gettid();
	switch (call->kind) {
	case SEND:
		call->result = send(call->fd, bytes, call->length, 0);
		break;
	case SENDMMSG: {
		struct iovec part = {bytes, call->length / 4};
		struct mmsghdr messages[4];
		memset(messages, 0, sizeof messages);
		for (int n = 0; n < 4; n++)
			messages[n].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
		call->result = sendmmsg(call->fd, messages, 4, 0) == 4 ? (ssize_t)call->length : -1;
		break;
	}
	case SENDFILE:
		call->result = sendfile(call->fd, call->file, &from, call->length);
		break;
	case SENDFILE_HERE:
		call->result = sendfile(call->fd, call->file, NULL, call->length);
		break;
	case SPLICE_IN:
		call->result = splice(call->file, NULL, call->fd, NULL, call->length, 0);
		break;
	case SPLICE_OUT:
		call->result = splice(call->fd, NULL, call->file, NULL, call->length, 0);
		break;
	case RECEIVE:
		call->result = recv(call->fd, bytes, call->length, MSG_WAITALL);
		break;
	}
	call->error = errno;
	return NULL;
}

/* The connection is closed while bytes go, and the next one is opened. */
static void closed_while_bytes_go(int kind)
{
	int file = file_of('A', PIECE);
	for (int round = 0; round < ROUNDS; round++) {
		int ends[2], others[2];
		join(ends);
		pthread_t thread, drains;
		struct drain there = {.fd = ends[1]};
		struct call call = {.fd = ends[0], .kind = kind, .file = file, .length = PIECE};
		MUST(pthread_create(&drains, NULL, drain, &there) == 0);
		MUST(pthread_create(&thread, NULL, make, &call) == 0);
		while (!there.came)
			sched_yield();
		close(ends[0]);
		join(others);
		char room[4] = "";
		for (int n = 0; n < 3; n++) {
			MUST(send(others[0], "BBBB", 4, 0) == 4);
			MUST(recv(others[1], room, 4, MSG_WAITALL) == 4 && memcmp(room, "BBBB", 4) == 0);
		}
		pthread_join(thread, NULL);
		pthread_join(drains, NULL);
		MUST(call.result == PIECE && there.came == PIECE && there.of['A'] == PIECE);
		close(ends[1]);
		close(others[0]);
		close(others[1]);
	}
	close(file);
	puts(now);
}

/* The same of a receive that has some and waits for more. */
static void closed_while_bytes_come(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		int ends[2], others[2];
		join(ends);
		pthread_t thread;
		struct call call = {.fd = ends[0], .kind = RECEIVE, .length = 6};
		MUST(send(ends[1], "AAA", 3, 0) == 3);
		MUST(recv(ends[0], bytes, 3, MSG_PEEK | MSG_WAITALL) == 3);
		MUST(pthread_create(&thread, NULL, make, &call) == 0);
		/* It has taken these, and waits or is about to. */
		while (!call.thread)
			sched_yield();
		if (round % 4 == 0)
			until_asleep(call.thread);
		else
			for (int left = 0; recv(ends[0], &left, 1, MSG_PEEK | MSG_DONTWAIT) > 0;)
				sched_yield();
		close(ends[0]);
		join(others);
		MUST(send(others[1], "BBBBBB", 6, 0) == 6);
		MUST(send(ends[1], "CCC", 3, MSG_NOSIGNAL) == 3);
		pthread_join(thread, NULL);
		MUST(call.result == 6 && memcmp(bytes, "AAACCC", 6) == 0);
		MUST(recv(others[0], bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "BBBBBB", 6) == 0);
		close(ends[1]);
		close(others[0]);
		close(others[1]);
	}
	puts(now);
}

/* The number of the file is closed, or is another file's, while its bytes wait for room. */
static void another_file_at_the_number(int kind, int other, size_t length)
{
	int ends[2];
	join(ends);
	/* Little fits, so that it waits. */
	int few = 1 << 14;
	setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
	pthread_t thread, drains;
	struct drain there = {.fd = ends[1]};
	struct call call = {.fd = ends[0], .kind = kind, .file = file_of('A', LARGE), .length = length};
	int source = call.file, kept = fcntl(source, F_DUPFD_CLOEXEC, 0);
	int another = file_of('B', LARGE);
	MUST(pthread_create(&thread, NULL, make, &call) == 0);
	while (!call.thread)
		sched_yield();
	until_asleep(call.thread);
	if (other)
		MUST(dup2(another, source) == source);
	else
		close(source);
	MUST(pthread_create(&drains, NULL, drain, &there) == 0);
	pthread_join(thread, NULL);
	shutdown(ends[0], SHUT_WR);
	pthread_join(drains, NULL);
	printf("%s: %zd, %ld and %ld\n", now, call.result, there.of['A'], there.of['B']);
	printf("positions %ld and %ld\n", (long)lseek(kept, 0, SEEK_CUR), (long)lseek(another, 0, SEEK_CUR));
	if (other)
		close(source);
	close(kept);
	close(another);
	close(ends[0]);
	close(ends[1]);
}

/* The number of a pipe is another one's while it is waited for bytes to splice. */
static void another_pipe_at_the_number(int kind)
{
	int ends[2], pipes[2], others[2];
	char room[5] = "";
	join(ends);
	MUST(pipe(pipes) == 0 && pipe(others) == 0);
	int number = kind == SPLICE_IN ? pipes[0] : pipes[1];
	pthread_t thread;
	struct call call = {.fd = ends[0], .kind = kind, .file = number, .length = 4};
	MUST(pthread_create(&thread, NULL, make, &call) == 0);
	while (!call.thread)
		sched_yield();
	until_asleep(call.thread);
	if (kind == SPLICE_IN) {
		MUST(write(others[1], "BBBB", 4) == 4 && dup2(others[0], number) == number);
		MUST(write(pipes[1], "AAAA", 4) == 4);
		MUST(recv(ends[1], room, 4, MSG_WAITALL) == 4);
	} else {
		MUST(dup2(others[1], number) == number);
		MUST(send(ends[1], "AAAA", 4, 0) == 4);
		MUST(read(pipes[0], room, 4) == 4);
	}
	pthread_join(thread, NULL);
	printf("%s: %zd, %s\n", now, call.result, room);
	if (kind == SPLICE_IN)
		MUST(read(number, room, 4) == 4 && strcmp(room, "BBBB") == 0);
	for (int n = 0; n < 2; n++) {
		close(ends[n]);
		close(pipes[n]);
		close(others[n]);
	}
}

/* The process locks the file while its bytes wait for room: the end of the call takes the lock from it no more than that of the kernel's. */
static void a_lock_meanwhile(void)
{
	int ends[2], status, few = 1 << 14;
	char path[64];
	struct flock lock = {.l_type = F_WRLCK};
	join(ends);
	setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
	pthread_t thread, drains;
	struct drain there = {.fd = ends[1]};
	struct call call = {.fd = ends[0], .kind = SENDFILE, .file = file_of('A', LARGE), .length = LARGE};
	snprintf(path, sizeof path, "/proc/self/fd/%d", call.file);
	MUST(pthread_create(&thread, NULL, make, &call) == 0);
	while (!call.thread)
		sched_yield();
	until_asleep(call.thread);
	MUST(fcntl(call.file, F_SETLK, &lock) == 0);
	MUST(pthread_create(&drains, NULL, drain, &there) == 0);
	pthread_join(thread, NULL);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0)
		_exit(fcntl(open(path, O_RDWR), F_SETLK, &lock) == -1 && errno == EAGAIN);
	MUST(waitpid(child, &status, 0) == child);
	printf("%s: %zd, another process is %s\n", now, call.result, WEXITSTATUS(status) ? "kept out" : "let in");
	shutdown(ends[0], SHUT_WR);
	pthread_join(drains, NULL);
	close(call.file);
	close(ends[0]);
	close(ends[1]);
}

int main(int count, char **arguments)
{
	MUST(count == 2);
	signal(SIGPIPE, SIG_IGN);
	listen_at_port(arguments[1]);
	now = "closed in send";
	closed_while_bytes_go(SEND);
	now = "closed in sendmmsg";
	closed_while_bytes_go(SENDMMSG);
	now = "closed in sendfile";
	closed_while_bytes_go(SENDFILE);
	now = "closed in recv";
	closed_while_bytes_come();
	now = "another file";
	another_file_at_the_number(SENDFILE, 1, LARGE);
	now = "another file, where it stands";
	another_file_at_the_number(SENDFILE_HERE, 1, LARGE);
	now = "no file";
	another_file_at_the_number(SENDFILE, 0, LARGE);
	now = "no file, where it stands";
	another_file_at_the_number(SENDFILE_HERE, 0, LARGE);
	now = "another pipe to splice from";
	another_pipe_at_the_number(SPLICE_IN);
	now = "another pipe to splice to";
	another_pipe_at_the_number(SPLICE_OUT);
	now = "a lock";
	a_lock_meanwhile();
	puts("all");
	return 0;
}
